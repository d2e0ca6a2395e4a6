//! Pages that move while others read them, evict them, close their files and empty their blocks.

use super::*;

/// Frames for four pageblocks of 64: mobility is kept apart from three on.
const NR_PAGES: u32 = 256;

/// Pins pages for long, some of them twice, and gives some of the moves up.
fn pinner(world: &World, seed: u64) {
    let cpu = Cpu::new(u32::try_from(seed & 1).expect("a bit"));
    let mut held = Vec::new();
    for step in 0..STEPS {
        let key = Mappings::key(world.file, (seed * 5 + step * 3) % 7).expect("a small page");
        let mut op = PageIn::longterm(key, world.group);
        if step % 5 == 4 {
            let mut effects = Effects::new();
            let stepped = op.step(&world.memory, cpu.into(), &mut effects);
            thread::yield_now();
            if let Ok(Step::Done(frame)) = stepped {
                world.unpin(cpu, frame);
            } else if stepped.is_ok() {
                let mut effects = Effects::new();
                op.abandon(&world.memory, cpu, &mut effects);
                world.run(cpu, Ok(()), &mut effects);
            }
            world.run(cpu, Ok(()), &mut effects);
        } else if let Some(frame) = world.run_op(cpu, key, step % 7 == 6, op) {
            held.push((frame, key));
        }
        if held.len() > 2 {
            let (frame, key) = held.remove(0);
            world.expect(frame, key);
            world.unpin(cpu, frame);
        }
    }
    for (frame, key) in held {
        world.expect(frame, key);
        world.unpin(cpu, frame);
    }
}

/// Takes working memory of several orders, for which blocks are emptied, and gives it back.
fn worker(world: &World) {
    let cpu = Cpu::new(1);
    let root = world.memory.groups().root();
    for step in 0..STEPS / 2 {
        let order = Order::new([0, 3, 6][usize::try_from(step % 3).expect("small")]);
        let order = order.expect("an order");
        if let Ok((frame, _)) = world.memory.alloc_buf(cpu.into(), root, order) {
            thread::yield_now();
            world.memory.free_buf(cpu, frame);
        }
        let max = 3 + step % 6;
        assert!(world.memory.set_max(cpu.into(), world.group, max).is_ok());
    }
}

fn run(policy: Policy) {
    let world = Arc::new(World::new(policy, NR_PAGES));
    let works: [fn(&World); 4] = [
        |world| pinner(world, 1),
        |world| pinner(world, 2),
        |world| reader(world, 3, 7),
        worker,
    ];
    let threads = works.map(|work| {
        let world = Arc::clone(&world);
        thread::spawn(move || work(&world))
    });
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    let frames = world.memory.frames();
    for frame in (0..frames.len()).map(Frame::new) {
        assert_eq!(frames.word(frame).pins(), 0, "{frame:?} is still pinned");
    }
    world.close();
}

#[test]
fn pages_move_under_gated_2q() {
    check(|| run(Policy::Gated2q));
}

#[test]
fn pages_move_under_mglru() {
    check(|| run(Policy::Mglru));
}

/// A file is closed while what was begun for it is completed by somebody else.
#[test]
fn a_file_closed_during_a_copy_gives_everything_back() {
    check(|| {
        let world = Arc::new(World::new(Policy::Fifo, NR_PAGES));
        let cpu = Cpu::new(0);
        let key = Mappings::key(world.file, 1).expect("a small page");
        let frame = world.have(cpu, key, false).expect("room");
        world.unpin(cpu, frame);
        let mut effects = Effects::new();
        let mut op = PageIn::longterm(key, world.group);
        let stepped = op.step(&world.memory, cpu.into(), &mut effects);
        assert!(matches!(stepped, Ok(Step::Wait { .. })), "{stepped:?}");
        op.abandon(&world.memory, cpu, &mut Effects::new());
        let copier = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.run(Cpu::new(1), Ok(()), &mut effects))
        };
        let run = &mut |effects: &mut Effects| {
            thread::yield_now();
            world.run(cpu, Ok(()), effects);
        };
        world.memory.close_mapping(cpu, world.file, run);
        copier.join().expect("the copier");
        world.memory.check();
        assert_eq!(world.memory.stats().nr_used, 0);
    });
}
