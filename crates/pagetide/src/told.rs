//! What stores and hooks say of their failures: core keeps a number of each.

use crate::backing::{NO_NUMBER, SHORT};
use crate::shared::locked;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;

/// Errors without a number of the system's that a file keeps: the last ones.
const MAX_KEPT: usize = 16;
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
        let code = FIRST + kept.nr_told % NR_CODES;
        kept.nr_told = kept.nr_told.wrapping_add(1);
        kept.errors.truncate(MAX_KEPT - 1);
        kept.errors.push_front((code, error));
        code
    }

    /// The error of a code.
    pub(crate) fn error_of(&self, code: u32) -> io::Error {
        let kept = locked(&self.0);
        let told = kept.errors.iter().find(|(told, _)| *told == code);
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
    fn an_error_is_told_as_it_was_until_many_more_came() {
        let told = Told::default();
        let codes: Vec<u32> = (0..20)
            .map(|nth| {
                told.code_of(&io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("no {nth}"),
                ))
            })
            .collect();
        let error = told.error_of(codes[19]);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let texts = [3, 4, 19].map(|nth| told.error_of(codes[nth]).to_string());
        assert_eq!(texts, ["the store failed", "no 4", "no 19"]);
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(told.error_of(told.code_of(&full)).raw_os_error(), Some(28));
        let kind = io::ErrorKind::PermissionDenied;
        assert_eq!(told.error_of(told.code_of(&kind.into())).kind(), kind);
        assert_eq!(told.code_of(&io::ErrorKind::UnexpectedEof.into()), SHORT);
    }
}
