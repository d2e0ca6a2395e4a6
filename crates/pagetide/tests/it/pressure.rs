//! Pressure: how it is shown, which triggers are refused, and groups that never wait.

use crate::data;
use pagetide::{ByteSize, Error, Group, Memory, Pressure, PressureKind, PressureLine};
use std::time::{Duration, Instant};

fn group(memory: &Memory) -> Group {
    memory.root().child("web").unwrap()
}

fn memory() -> Memory {
    Memory::builder().budget(ByteSize::mib(8)).build().unwrap()
}

#[test]
fn pressure_is_shown_as_the_kernel_does() {
    let some = PressureLine {
        avg10: 100.0,
        avg60: 12.5,
        avg300: 0.07,
        total: Duration::from_nanos(1_234_567_999),
    };
    let full = PressureLine::default();
    assert_eq!(
        Pressure { some, full }.to_string(),
        "some avg10=100.00 avg60=12.50 avg300=0.07 total=1234567\n\
         full avg10=0.00 avg60=0.00 avg300=0.00 total=0"
    );
}

#[test]
fn a_group_that_never_waits_has_none() {
    let memory = memory();
    let web = group(&memory);
    let tasks = [web.task(), memory.root().task()];
    let bytes = web.alloc(pagetide::Order::new(0)).unwrap();
    assert_eq!(web.pressure(), Pressure::default());
    drop((bytes, tasks));
    assert_eq!(memory.root().pressure(), Pressure::default());
}

#[test]
fn a_group_that_is_reclaimed_from_for_itself_has_some_and_its_sibling_has_none() {
    let memory = memory();
    let data = data::numbered_file(1024);
    let web = group(&memory).max(ByteSize::mib(1)).unwrap();
    let idle = memory.root().child("idle").unwrap();
    let resting = memory.open(data.path(), &idle).unwrap();
    resting.read_at(&mut [0; 64 << 10], 0).unwrap();
    let file = resting.for_group(&web);
    for page in 0..1024 {
        assert_eq!(file.read_at(&mut [0], page * 4096).unwrap(), 1);
    }
    assert!(memory.stats().pgsteal > 0);
    let [some, full] = [web.pressure().some.total, web.pressure().full.total];
    assert!(!some.is_zero());
    // Nobody is declared to work for it: whoever waits is all there is.
    assert_eq!(some, full);
    assert_eq!(idle.pressure(), Pressure::default());
    assert!(memory.root().pressure().some.total >= some);
}

/// Which part of a wait for pins that stay is a stall.
fn stalled_part(group: &Group, refused: impl FnOnce() -> bool) -> f64 {
    let (before, begin) = (group.pressure().some.total, Instant::now());
    assert!(refused());
    let (took, after) = (begin.elapsed(), group.pressure().some.total);
    (after - before).as_secs_f64() / took.as_secs_f64()
}

#[test]
fn who_sleeps_until_others_let_pages_go_stalls_all_the_time() {
    let memory = memory();
    let data = data::numbered_file(64);
    let web = group(&memory).max(ByteSize::kib(64)).unwrap();
    let file = memory.open_rw(data.path(), &web).unwrap();
    let pins: Vec<_> = (0..16).map(|page| file.pin(page).unwrap()).collect();
    let ways: [&dyn Fn() -> bool; 3] = [
        &|| file.pin(40).is_err(),
        &|| file.pin_many(&[40, 50]).is_err(),
        &|| file.write_at(&[7], 40 * 4096).is_err(),
    ];
    for (number, refused) in ways.into_iter().enumerate() {
        // Beside others it may get no CPU for a while, between two stalls perhaps.
        let mut parts = (0..10).map(|_| stalled_part(&web, refused));
        assert!(parts.any(|part| part > 0.7), "way {number}");
    }
    drop(pins);
}

#[test]
fn a_trigger_on_a_group_that_never_waits_never_fires() {
    let memory = memory();
    let mut trigger = group(&memory).trigger("some 1 500000").unwrap();
    assert!(!trigger.poll());
    let (start, timeout) = (Instant::now(), Duration::from_millis(120));
    assert!(!trigger.wait(timeout));
    assert!(start.elapsed() >= timeout);
    assert!(!trigger.wait(Duration::ZERO));
}

#[test]
fn triggers_are_read_as_the_kernel_reads_them() {
    let memory = memory();
    let web = group(&memory);
    for spec in [
        "some 150000 1000000",
        "full 1 500000",
        "full 10000000 10000000",
        "  some\t500000  500000\n",
    ] {
        assert!(web.trigger(spec).is_ok(), "{spec}");
    }
    let form = "must be `some` or `full`, a threshold and a window in microseconds";
    let window = "must have a window of 500 ms to 10 s";
    let threshold = "must have a threshold above 0 and not above its window";
    for (bad, why) in [
        ("", form),
        ("some", form),
        ("some 150000", form),
        ("some 150000 1000000 1", form),
        ("any 150000 1000000", form),
        ("Some 150000 1000000", form),
        ("some -1 1000000", form),
        ("some 150ms 1s", form),
        ("some 150000 99999999999999999999", form),
        ("some 1 499999", window),
        ("some 1 10000001", window),
        ("full 0 1000000", threshold),
        ("full 1000001 1000000", threshold),
    ] {
        match web.trigger(bad).unwrap_err() {
            Error::BadTrigger { spec, problem } => assert_eq!((&*spec, problem), (bad, why)),
            other => panic!("{bad}: {other}"),
        }
    }
}

#[test]
fn typed_triggers_have_the_same_limits() {
    let memory = memory();
    let web = group(&memory);
    let on = |threshold, window| {
        let times = [threshold, window].map(Duration::from_millis);
        web.trigger_on(PressureKind::Full, times[0], times[1])
    };
    assert!(on(500, 500).is_ok() && on(1, 10_000).is_ok());
    assert_eq!(
        on(501, 500).unwrap_err().to_string(),
        "pressure trigger 'full 501000 500000' must have a threshold above 0 and not above its \
         window"
    );
    assert_eq!(
        on(1, 20_000).unwrap_err().to_string(),
        "pressure trigger 'full 1000 20000000' must have a window of 500 ms to 10 s"
    );
    let longest = web.trigger_on(PressureKind::Some, Duration::MAX, Duration::MAX);
    assert!(longest.is_err());
}
