//! What a map says of units, whoever changes, reads or discards them.

use super::*;
use crate::Memory;
use std::cell::Cell;

/// What a map is charged to; it keeps its memory.
fn records() -> Reservation {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    memory.root().reserve(ByteSize(0)).unwrap()
}

fn expect(
    map: &SlotMap,
    units: Range<u64>,
    records: &Reservation,
    commit: impl Fn(u32) -> Result<(), Error>,
) -> Result<bool, Error> {
    let expected = map.expect(units, (records, true), commit);
    expected.map(|is_counted| is_counted.unwrap())
}

/// How many units are forgotten as what was expected ends.
fn ended(map: &SlotMap, units: Range<u64>, is_changed: bool, records: &Reservation) -> u32 {
    let nr_units = Cell::new(0);
    map.end_expected(units, is_changed, records, |nr| nr_units.set(nr));
    nr_units.get()
}

/// How many units are forgotten as they are discarded.
fn forgotten(map: &SlotMap, units: Range<u64>, records: &Reservation) -> u32 {
    let nr_units = Cell::new(0);
    map.forget(units, records, |nr| nr_units.set(nr));
    nr_units.get()
}

#[test]
fn of_units_that_find_no_room_none_is_known_and_nothing_stays_charged() {
    let records = records();
    let map = SlotMap::default();
    let left = Cell::new(300);
    let commit = |nr_units: u32| match left.get() < nr_units {
        true => Err(Error::SpillFull { max_bytes: 0 }),
        false => {
            left.set(left.get() - nr_units);
            Ok(())
        }
    };
    // In three leaves.
    assert!(expect(&map, 0..301, &records, commit).is_err());
    assert_eq!((left.get(), records.size()), (300, ByteSize(0)));
    assert!(expect(&map, 100..200, &records, commit).unwrap());
    assert_eq!(ended(&map, 100..200, true, &records), 0);
    assert!(expect(&map, 0..400, &records, commit).is_err());
    assert_eq!(left.get(), 200);
    assert_eq!(records.size(), ByteSize(2 * LEAF_BYTES));
    assert!(expect(&map, 0..300, &records, commit).unwrap());
    assert_eq!(ended(&map, 0..300, true, &records), 0);
    // Known for good.
    assert!(!expect(&map, 0..300, &records, commit).unwrap());
    assert_eq!(left.get(), 0);
    assert_eq!(forgotten(&map, 0..400, &records), 300);
    assert_eq!(records.size(), ByteSize(0));
}

#[test]
fn what_nobody_changed_is_forgotten_when_the_last_one_gives_up() {
    let records = records();
    let map = SlotMap::default();
    let commit = |_| Ok(());
    assert_eq!(map.expect_known(5..6), None);
    assert!(expect(&map, 5..6, &records, commit).unwrap());
    assert_eq!(map.expect_known(5..6), Some(true));
    assert!(expect(&map, 5..6, &records, commit).unwrap());
    let end = |is_changed| ended(&map, 5..6, is_changed, &records);
    assert_eq!([end(false), end(false), end(false)], [0, 0, 1]);
    assert_eq!(map.expect_known(5..6), None);
    assert_eq!(records.size(), ByteSize(0));
    // Who was refused is not waited for.
    let refused = |_| Err(Error::SpillFull { max_bytes: 0 });
    assert!(expect(&map, 5..6, &records, commit).unwrap());
    assert!(expect(&map, 5..7, &records, refused).is_err());
    assert_eq!(end(false), 1);
    assert_eq!(records.size(), ByteSize(0));
    // Who gives up leaves what another one has changed.
    assert!(expect(&map, 5..6, &records, commit).unwrap());
    assert!(expect(&map, 5..6, &records, commit).unwrap());
    assert_eq!([end(true), end(false)], [0, 0]);
    assert_eq!(map.expect_known(5..6), Some(false));
    // What was changed before it was discarded is not, for who is about to still.
    assert!(expect(&map, 4..5, &records, commit).unwrap());
    assert!(expect(&map, 4..5, &records, commit).unwrap());
    assert_eq!(ended(&map, 4..5, true, &records), 0);
    assert_eq!(forgotten(&map, 4..5, &records), 1);
    assert!(expect(&map, 4..5, &records, commit).unwrap());
    let end = |is_changed| ended(&map, 4..5, is_changed, &records);
    assert_eq!([end(false), end(false)], [0, 1]);
    assert_eq!(forgotten(&map, 5..6, &records), 1);
    assert_eq!(records.size(), ByteSize(0));
}

/// Of a page that somebody discards, who has found it in no frame, while another one begins to
/// bring it in.
#[test]
fn a_slot_that_goes_while_it_is_read_is_given_away_when_that_ends() {
    let records = records();
    let map = SlotMap::default();
    assert!(expect(&map, 5..7, &records, |_| Ok(())).unwrap());
    map.put(5, Place::Slot(3));
    map.put(6, Place::Slot(4));
    assert!(map.begin_read(5..7));
    map.take(5, |slot| panic!("slot {slot} is being read"));
    assert_eq!([map.get(5), map.get(6)], [Place::Nowhere, Place::Slot(4)]);
    assert_eq!(map.read_of(5), Place::Slot(3), "the read goes on there");
    let mut given = Vec::new();
    map.end_read(5..7, |slot| given.push(slot));
    assert_eq!(given, [3]);
    assert!(map.begin_read(5..7), "the other one is there");
    assert_eq!(map.read_of(5), Place::Nowhere);
    map.end_read(5..7, |slot| panic!("slot {slot} stays"));
    map.take(6, |slot| given.push(slot));
    assert_eq!(given, [3, 4]);
}
