//! Files of traces: any bytes are a trace or a clear error. The first byte chooses the form.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_sim::trace::{Trace, TraceOptions};
use std::fs;

fuzz_target!(|data: &[u8]| {
    let Some((&form, bytes)) = data.split_first() else {
        return;
    };
    // One for each input: a folder that outlives them is never removed.
    let folder = tempfile::tempdir().expect("a folder");
    let name = ["a.d64.zst", "a.csv", "a.txt"][usize::from(form) % 3];
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a file");
    match Trace::open(&path, &TraceOptions::default()) {
        Ok(trace) => {
            assert!(!trace.pages.is_empty());
            assert!(trace.pages.iter().all(|&page| page < trace.nr_unique));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
});
