//! Generations of a group's pages, as users see them.

use crate::data;
use pagetide::{BadGeneration, ByteSize, Memory, Policy};

#[test]
fn generations_are_shown_opened_and_evicted() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.policy(Policy::Mglru).build().unwrap();
    let web = memory.root().child("web").unwrap();
    let source = data::numbered_file(200);
    let file = memory.open(source.path(), &web).unwrap();
    assert_eq!(web.lru_gen().generations, []);
    assert_eq!(web.age(0, 3, false), Err(BadGeneration::None));
    let mut page = [0; 4096];
    (0..200).for_each(|at| _ = file.read_at(&mut page, at * 4096).unwrap());
    let view = web.lru_gen();
    let sizes: Vec<_> = view.generations.iter().map(|one| one.nr_file).collect();
    assert_eq!(sizes.iter().sum::<u32>(), 200);
    let text = view.to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("memcg web"));
    assert_eq!(lines.next(), Some(" node     0"));
    let numbers: Vec<u64> = lines
        .next()
        .unwrap()
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let oldest = view.generations[0];
    assert_eq!(numbers.len(), 4);
    assert_eq!(numbers[0], oldest.seq);
    assert_eq!(numbers[2..], [0, oldest.nr_file.into()]);

    let max_seq = view.generations.last().unwrap().seq;
    assert_eq!(web.age(0, max_seq, true), Ok(()));
    let refused = web.evict_generations(0, max_seq, None, ByteSize::mib(1));
    let out_of_range = BadGeneration::OutOfRange {
        seq: max_seq,
        max_seq: max_seq + 1,
    };
    assert_eq!(refused, Err(out_of_range));
    assert_eq!(
        out_of_range.to_string(),
        format!(
            "generation {max_seq} is out of range: the youngest is {}",
            max_seq + 1
        )
    );
    let went = web.evict_generations(0, max_seq - 1, None, ByteSize::mib(1));
    assert_eq!(went, Ok(ByteSize::kib(800)));
    assert_eq!(web.stat().file, 0);
    assert_eq!(web.age(7, 1, false), Err(BadGeneration::None));
}
