//! Variants in turn, in both orders, so that what disturbs the machine disturbs all alike.

use crate::failure::Failure;

/// Runs each of `nr_variants` variants `nr_rounds` times; the results of each, in order.
pub(super) fn run<T>(
    nr_rounds: u32,
    nr_variants: usize,
    mut variant: impl FnMut(usize) -> Result<T, Failure>,
) -> Result<Vec<Vec<T>>, Failure> {
    let mut results: Vec<Vec<T>> = (0..nr_variants).map(|_| Vec::new()).collect();
    for round in 0..nr_rounds {
        for turn in 0..nr_variants {
            let at = match round % 2 {
                0 => turn,
                _ => nr_variants - 1 - turn,
            };
            results[at].push(variant(at)?);
        }
    }
    Ok(results)
}

/// The value in the middle, of an even number the mean of the two there.
///
/// # Panics
/// Where there is none.
pub(super) fn median<T>(results: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = results.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// The least and the largest value.
pub(super) fn range<T>(results: &[T], of: impl Fn(&T) -> f64) -> (f64, f64) {
    let values = results.iter().map(of);
    let least_and_most =
        |(least, most): (f64, f64), value: f64| (least.min(value), most.max(value));
    values.fold((f64::INFINITY, f64::NEG_INFINITY), least_and_most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        let of = |values: &[f64]| median(values, |&value| value);
        assert_eq!([of(&[7.0]), of(&[9.0, 1.0])], [7.0, 5.0]);
        assert_eq!(
            [of(&[9.0, 1.0, 4.0]), of(&[9.0, 1.0, 4.0, 2.0])],
            [4.0, 3.0]
        );
    }

    #[test]
    fn both_orders_by_turns() {
        let mut order = Vec::new();
        let results = run(3, 3, |at| {
            order.push(at);
            Ok(at * 10 + order.len())
        });
        assert_eq!(order, [0, 1, 2, 2, 1, 0, 0, 1, 2]);
        let results = results.unwrap_or_default();
        assert_eq!(results[1], [12, 15, 18]);
        let value = |&result: &usize| result as f64;
        assert!((median(&results[1], value) - 15.0).abs() < 0.1);
        let (least, most) = range(&results[1], value);
        assert!((least - 12.0).abs() < 0.1 && (most - 18.0).abs() < 0.1);
    }
}
