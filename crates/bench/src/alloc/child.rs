//! One allocator in a process of its own: asked by a line, it answers by a line.

use super::blocks::Blocks;
use super::ours::{Bare, Charged};
use super::pattern::{self, Cost};
use super::peers::{BuddyFrames, Heap, Mmap, buddy_heap};
use super::{Allocator, Load, name, sys};
use clap::Args;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};

/// After this many seconds without an answer a child is ended by the kernel.
const ALARM_SECONDS: u32 = 60;
/// The alignment that `malloc` gives without being asked.
const MALLOC_ALIGN: usize = 16;

const RUN: &str = "run";
const RESIDENT: &str = "resident";
const FAILED: &str = "failed: ";

/// What a child is started with.
#[derive(Args)]
pub struct ChildOptions {
    #[arg(long)]
    allocator: Allocator,
    #[command(flatten)]
    load: Load,
}

/// Does what the parent asks until it closes the pipe.
pub fn serve(options: &ChildOptions) -> Result<(), Box<dyn Error>> {
    // A thread that panics would leave the others at a barrier: the process ends instead.
    std::panic::set_hook(Box::new(|panic| {
        println!("{FAILED}{}", panic.to_string().replace('\n', " "));
        process::exit(1);
    }));
    let (load, bytes) = (options.load, options.load.bytes());
    // What the program and its libraries hold before any allocator was asked.
    let before = pagetide::resident_bytes()?;
    match options.allocator {
        Allocator::Pagetide => answer(&Charged::new(load.order)?, load, before),
        Allocator::PagetideCore => answer(&Bare::new(load.order), load, before),
        Allocator::Glibc => answer(&Heap::new(std::alloc::System, bytes), load, before),
        Allocator::GlibcUnaligned => {
            let heap = Heap::with_align(std::alloc::System, bytes, MALLOC_ALIGN);
            answer(&heap, load, before)
        }
        Allocator::Mimalloc => answer(&Heap::new(mimalloc::MiMalloc, bytes), load, before),
        Allocator::Jemalloc => answer(&Heap::new(tikv_jemallocator::Jemalloc, bytes), load, before),
        Allocator::Tcmalloc => answer(&Heap::new(tcmalloc_better::TCMalloc, bytes), load, before),
        Allocator::Rpmalloc => answer(&Heap::new(rpmalloc::RpMalloc, bytes), load, before),
        Allocator::BuddyHeap => answer(&buddy_heap(bytes), load, before),
        Allocator::BuddyFrame => answer(&BuddyFrames::new(bytes), load, before),
        Allocator::Mmap => answer(&Mmap { bytes }, load, before),
    }
}

fn answer(blocks: &impl Blocks, load: Load, before: u64) -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        sys::set_alarm(ALARM_SECONDS);
        match line?.as_str() {
            RUN => {
                let Cost { cpu_ns, elapsed_ns } = pattern::run(blocks, load);
                println!("{cpu_ns} {elapsed_ns}");
            }
            RESIDENT => println!("{}", pagetide::resident_bytes()?.saturating_sub(before)),
            other => return Err(format!("a child knows no {other:?}").into()),
        }
    }
    Ok(())
}

/// The parent's end of a child; dropping it ends the child.
pub struct Child {
    process: process::Child,
    /// `None` once it is to end.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Why it ended before its time.
    failure: Option<String>,
}

impl Child {
    pub fn spawn(allocator: Allocator, load: Load) -> Result<Child, Box<dyn Error>> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("alloc-child")
            .args(["--allocator", &name(&allocator)])
            .args(["--order", &load.order.to_string()])
            .args(["--pattern", &name(&load.pattern)])
            .args(["--threads", &load.threads.to_string()])
            .args(["--millis", &load.millis.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let questions = process.stdin.take();
        let answers = process.stdout.take().ok_or("a child without its pipe")?;
        Ok(Child {
            process,
            questions,
            answers: BufReader::new(answers),
            failure: None,
        })
    }

    /// One timed run.
    ///
    /// # Errors
    /// What the child said last.
    pub fn run(&mut self) -> Result<Cost, String> {
        self.ask(RUN, |answer| {
            let (cpu_ns, elapsed_ns) = answer.split_once(' ')?;
            Some(Cost {
                cpu_ns: cpu_ns.parse().ok()?,
                elapsed_ns: elapsed_ns.parse().ok()?,
            })
        })
    }

    /// What it keeps resident now, beyond what it had before there was an allocator.
    ///
    /// # Errors
    /// What the child said last.
    pub fn resident_bytes(&mut self) -> Result<u64, String> {
        self.ask(RESIDENT, |answer| answer.parse().ok())
    }

    fn ask<T>(
        &mut self,
        question: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, String> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let mut answer = String::new();
        // A child that has ended takes no question and leaves no answer: its status then tells.
        if let Some(questions) = &mut self.questions {
            let _ = writeln!(questions, "{question}");
        }
        let _ = self.answers.read_line(&mut answer);
        let answer = answer.trim();
        if let Some(value) = parse(answer) {
            return Ok(value);
        }
        self.questions = None;
        let failure = match self.process.wait() {
            _ if !answer.is_empty() => answer.trim_start_matches(FAILED).to_owned(),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        self.failure = Some(failure.clone());
        Err(failure)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.questions = None;
        // The pipe is closed, so it ends by itself; how does not matter any more.
        let _ = self.process.wait();
    }
}
