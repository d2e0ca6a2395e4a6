//! What a reservation costs, in counts: times are for people.

use crate::json;

#[test]
fn a_reservation_out_of_a_full_cache_takes_few_system_calls() {
    let rows = json(&["bench", "reserve", "--json", "--runs", "1"]);
    let row = &rows[0];
    let number = |key: &str| row[key].as_f64().unwrap();
    assert_eq!(number("reserved_bytes"), f64::from(300 << 20));
    assert_eq!(number("regions"), 150.0);
    let cached = number("cached_bytes") / number("budget_bytes");
    assert!(cached > 0.95, "was the cache filled? {row}");
    // All but what the arena has beyond the budget went to the OS.
    assert!(
        number("released_bytes") > 290.0 * f64::from(1 << 20),
        "{row}"
    );
    assert!(number("release_calls_per_region") <= 2.0, "{row}");
    let evicted = number("pages_evicted_per_page");
    assert!((0.9..=1.05).contains(&evicted), "{row}");
    match row["system_calls_per_region"].as_f64() {
        Some(calls) => assert!(calls <= 2.0, "{row}"),
        None => println!("skipped: strace: no strace here, or it may not trace"),
    }
}
