//! `hit`: 4 KiB out of memory, by pagetide, by an object cache that holds pages, by `pread`.
//!
//! Each variant runs five times, in turn and in both orders; medians are printed, a JSON line each.
//! Times on a shared machine tell ratios within one run, no more.

use pagetide::{ByteSize, File, Memory};
use quick_cache::sync::Cache;
use std::error::Error;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

const PAGE: usize = 4096;
const READS: u64 = 400_000;
const ROUNDS: usize = 5;

type Variant<'a> = (&'static str, Box<dyn Fn(u64) + 'a>);

pub fn run() -> Result<(), Box<dyn Error>> {
    for nr_pages in [1_u64, 200, 4096, 32_768] {
        let data = tempfile::NamedTempFile::new()?;
        data.as_file().set_len(nr_pages * PAGE as u64)?;
        let memory = Memory::builder().budget(ByteSize::mib(256)).build()?;
        let file = memory.open(data.path(), &memory.root())?;
        let cache: Cache<u64, Arc<[u8]>> = Cache::new(usize::try_from(2 * nr_pages + 16)?);
        for page in 0..nr_pages {
            file.pin(page)?;
            cache.insert(page, vec![0; PAGE].into());
        }
        report(nr_pages, &variants(&file, &cache, data.as_file()));
    }
    Ok(())
}

fn variants<'a>(
    file: &'a File,
    cache: &'a Cache<u64, Arc<[u8]>>,
    plain: &'a std::fs::File,
) -> [Variant<'a>; 5] {
    let copied = |bytes: &[u8]| {
        let mut out = [0; PAGE];
        out.copy_from_slice(bytes);
        black_box(&out);
    };
    [
        (
            "pagetide_read_at",
            Box::new(move |page| {
                let mut out = [0; PAGE];
                file.read_at(&mut out, page * PAGE as u64)
                    .expect("a cached page");
                black_box(&out);
            }),
        ),
        (
            "pagetide_pin",
            Box::new(move |page| {
                black_box(&*file.pin(page).expect("a cached page"));
            }),
        ),
        (
            "quick_cache_get",
            Box::new(move |page| {
                black_box(cache.get(&page).expect("a cached value"));
            }),
        ),
        (
            "quick_cache_get_copy",
            Box::new(move |page| {
                copied(&cache.get(&page).expect("a cached value"));
            }),
        ),
        (
            "pread",
            Box::new(move |page| {
                let mut out = [0; PAGE];
                plain
                    .read_exact_at(&mut out, page * PAGE as u64)
                    .expect("a page");
                black_box(&out);
            }),
        ),
    ]
}

fn report(nr_pages: u64, variants: &[Variant<'_>]) {
    let mut times = vec![Vec::new(); variants.len()];
    for round in 0..ROUNDS {
        for step in 0..variants.len() {
            let at = if round % 2 == 0 {
                step
            } else {
                variants.len() - 1 - step
            };
            times[at].push(nanos(nr_pages, &variants[at].1));
        }
    }
    for ((name, _), times) in variants.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times[ROUNDS / 2];
        let what = format!(r#""bench":"hit","variant":"{name}","pages":{nr_pages}"#);
        println!(r#"{{{what},"threads":1,"ns":{median:.1}}}"#);
    }
}

/// Nanoseconds for each of [`READS`] reads of pages in a scattered order.
fn nanos(nr_pages: u64, read: &dyn Fn(u64)) -> f64 {
    let mut number = 1_u64;
    let start = Instant::now();
    for _ in 0..READS {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        read((number >> 33) % nr_pages);
    }
    start.elapsed().as_nanos() as f64 / READS as f64
}
