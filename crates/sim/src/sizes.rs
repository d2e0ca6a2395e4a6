//! Numbers of frames, from fractions of a trace's distinct pages.

/// A fraction that is no fraction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("a fraction of {fraction} is not above 0 and at most 1")]
pub struct BadFraction {
    /// The number.
    pub fraction: f64,
}

/// A fraction of the distinct pages of a trace, in frames: rounded half to even, at least 1.
///
/// # Errors
/// [`BadFraction`] where it is not above 0 and at most 1.
pub fn frames_of(fraction: f64, nr_unique: u32) -> Result<u32, BadFraction> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(BadFraction { fraction });
    }
    let rounded = (f64::from(nr_unique) * fraction).round_ties_even();
    // At most `nr_unique`, and a whole number: the cast is exact.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let frames = rounded as u32;
    Ok(frames.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_to_even() {
        assert_eq!(frames_of(0.5, 5), Ok(2));
        assert_eq!(frames_of(0.5, 7), Ok(4));
        assert_eq!(frames_of(0.001, 21_349), Ok(21));
        assert_eq!(frames_of(0.05, 21_349), Ok(1067));
        assert_eq!(frames_of(0.0001, 100), Ok(1));
    }

    #[test]
    fn what_is_no_fraction_is_refused() {
        for fraction in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(frames_of(fraction, 10).is_err());
        }
    }
}
