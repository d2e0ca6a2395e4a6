//! What stores and hooks say of their failures: core keeps a number of each.

use crate::backing::{NO_NUMBER, SHORT};
use crate::shared::locked;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;

/// Errors without a number of the system's that a file keeps: the last different ones, more than
/// there are of pages that somebody has read together, who is told of the first.
const MAX_KEPT: usize = 512;
/// Their codes begin here, and come round after so many. The system's numbers are lower, those of
/// `backing.rs` higher.
const FIRST: u32 = 1 << 31;
const NR_CODES: u32 = 1 << 20;

/// The last errors of a file that have no number of the system's.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    errors: VecDeque<(u32, io::Error)>,
    /// One that is kept for good.
    last: Option<(u32, io::Error)>,
    nr_told: u32,
}

impl Told {
    /// What core keeps of an error: [`Told::error_of`] gives it back.
    pub(crate) fn code_of(&self, error: &io::Error) -> u32 {
        match code_of(error) {
            code if code != NO_NUMBER && error.get_ref().is_none() => code,
            _ => self.keep(again(error)),
        }
    }

    fn keep(&self, error: io::Error) -> u32 {
        let mut kept = locked(&self.0);
        let text = error.to_string();
        let is_same = |told: &io::Error| told.kind() == error.kind() && told.to_string() == text;
        if let Some((code, _)) = kept.errors.iter().find(|(_, told)| is_same(told)) {
            return *code;
        }
        let code = FIRST + kept.nr_told % NR_CODES;
        kept.nr_told = kept.nr_told.wrapping_add(1);
        kept.errors.truncate(MAX_KEPT - 1);
        kept.errors.push_front((code, error));
        code
    }

    /// Keeps the error of a code for good: of one at most.
    pub(crate) fn keep_for_good(&self, code: u32) {
        let error = self.error_of(code);
        locked(&self.0).last = Some((code, error));
    }

    /// The error of a code.
    pub(crate) fn error_of(&self, code: u32) -> io::Error {
        let kept = locked(&self.0);
        let mut all = kept.errors.iter().chain(&kept.last);
        let told = all.find(|(told, _)| *told == code);
        told.map_or_else(|| error_of(code), |(_, error)| again(error))
    }
}

/// The same error once more.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// What core keeps of an error where nobody keeps more.
pub(crate) fn code_of(error: &io::Error) -> u32 {
    let number = error.raw_os_error().and_then(|n| u32::try_from(n).ok());
    let number = number.filter(|&number| number != 0);
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => SHORT,
        _ => number.unwrap_or(NO_NUMBER),
    }
}

/// The error of such a code.
pub(crate) fn error_of(code: u32) -> io::Error {
    match i32::try_from(code) {
        Ok(number) => io::Error::from_raw_os_error(number),
        Err(_) if code == SHORT => {
            io::Error::new(io::ErrorKind::WriteZero, "the store took no more bytes")
        }
        Err(_) => io::Error::other("the store failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_as_it_was_until_many_others_came() {
        let told = Told::default();
        let no = |nth: usize| io::Error::new(io::ErrorKind::NotFound, format!("no {nth}"));
        let codes: Vec<u32> = (0..MAX_KEPT).map(|nth| told.code_of(&no(nth))).collect();
        told.keep_for_good(codes[1]);
        (0..MAX_KEPT).for_each(|_| assert_eq!(told.code_of(&no(7)), codes[7]));
        assert_eq!(told.error_of(codes[0]).to_string(), "no 0");
        for nth in MAX_KEPT..MAX_KEPT + 3 {
            told.code_of(&no(nth));
        }
        let error = told.error_of(codes[19]);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let texts = [0, 1, 2, 3, 19].map(|nth| told.error_of(codes[nth]).to_string());
        let failed = "the store failed";
        assert_eq!(texts, [failed, "no 1", failed, "no 3", "no 19"]);
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(told.error_of(told.code_of(&full)).raw_os_error(), Some(28));
        let kind = io::ErrorKind::PermissionDenied;
        assert_eq!(told.error_of(told.code_of(&kind.into())).kind(), kind);
        assert_eq!(told.code_of(&io::ErrorKind::UnexpectedEof.into()), SHORT);
    }
}
