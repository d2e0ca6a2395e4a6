//! `hit`: 4 KiB out of memory, by pagetide, by object caches that hold pages, by `pread`.
//!
//! Each variant runs `--rounds` times, in turn and in both orders; medians and the least are
//! printed, a JSON line each. Times on a shared machine tell ratios within one run, no more.

use pagetide::{File, Memory};
use std::error::Error;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

const PAGE: usize = 4096;
const READS: u64 = 400_000;

/// Where pages are copied to: the same for all, as a program would have it. One that is made for
/// each read would be cleared first, but for those whose copy the compiler sees.
#[repr(align(4096))]
struct Out([u8; PAGE]);

#[derive(clap::Args)]
pub struct Options {
    /// How often each variant runs, in turn and in both orders; medians are printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Pages that are read: one, and sets that fit in a core's caches, in a shared one, in none
    #[arg(long, value_delimiter = ',', default_values_t = [1, 128, 4096, 131_072])]
    pages: Vec<u64>,
}

type Variant<'a> = (&'static str, Box<dyn Fn(u64, &mut Out) + 'a>);

/// The object caches, each with all pages.
struct Peers {
    quick: quick_cache::sync::Cache<u64, Arc<[u8]>>,
    moka: moka::sync::Cache<u64, Arc<[u8]>>,
    foyer: foyer_memory::Cache<u64, Arc<[u8]>>,
}

impl Peers {
    fn new(nr_pages: u64) -> Result<Peers, Box<dyn Error>> {
        let room = 2 * nr_pages + 1024;
        let peers = Peers {
            quick: quick_cache::sync::Cache::new(usize::try_from(room)?),
            moka: moka::sync::Cache::new(room),
            foyer: foyer_memory::CacheBuilder::new(usize::try_from(room)?).build(),
        };
        for page in 0..nr_pages {
            let bytes: Arc<[u8]> = vec![0; PAGE].into();
            peers.quick.insert(page, Arc::clone(&bytes));
            peers.moka.insert(page, Arc::clone(&bytes));
            peers.foyer.insert(page, bytes);
        }
        peers.moka.run_pending_tasks();
        Ok(peers)
    }
}

pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    for &nr_pages in &options.pages {
        let data = tempfile::NamedTempFile::new()?;
        data.as_file().set_len(nr_pages * PAGE as u64)?;
        let nr_frames = u32::try_from(nr_pages)? + 64;
        let memory = Memory::builder().for_resident_pages(nr_frames).build()?;
        let file = memory.open(data.path(), &memory.root())?;
        let peers = Peers::new(nr_pages)?;
        for page in 0..nr_pages {
            file.pin(page)?;
        }
        let variants = variants(&file, &peers, data.as_file());
        report(options.rounds, nr_pages, &variants);
    }
    Ok(())
}

/// A view of 4 KiB that costs no copy.
fn seen<T>(found: Option<T>) {
    black_box(found.expect("a cached value"));
}

fn copied(bytes: &[u8], out: &mut Out) {
    out.0.copy_from_slice(bytes);
    black_box(&*out);
}

fn variants<'a>(file: &'a File, peers: &'a Peers, plain: &'a std::fs::File) -> Vec<Variant<'a>> {
    let Peers { quick, moka, foyer } = peers;
    let there = "a cached value";
    vec![
        (
            "pagetide_read_at",
            Box::new(move |page, out| {
                file.read_at(&mut out.0, page * PAGE as u64)
                    .expect("a cached page");
                black_box(&*out);
            }),
        ),
        (
            "pagetide_pin",
            Box::new(move |page, _| {
                black_box(&*file.pin(page).expect("a cached page"));
            }),
        ),
        (
            "quick_cache_get",
            Box::new(|page, _| seen(quick.get(&page))),
        ),
        (
            "quick_cache_get_copy",
            Box::new(|page, out| copied(&quick.get(&page).expect(there), out)),
        ),
        ("moka_get", Box::new(|page, _| seen(moka.get(&page)))),
        (
            "moka_get_copy",
            Box::new(|page, out| copied(&moka.get(&page).expect(there), out)),
        ),
        ("foyer_get", Box::new(|page, _| seen(foyer.get(&page)))),
        (
            "foyer_get_copy",
            Box::new(|page, out| copied(foyer.get(&page).expect(there).value(), out)),
        ),
        (
            "pread",
            Box::new(move |page, out| {
                plain
                    .read_exact_at(&mut out.0, page * PAGE as u64)
                    .expect("a page");
                black_box(&*out);
            }),
        ),
    ]
}

fn report(rounds: u16, nr_pages: u64, variants: &[Variant<'_>]) {
    let mut times = vec![Vec::new(); variants.len()];
    for round in 0..rounds {
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
        let (least, median) = (times[0], times[times.len() / 2]);
        let what = format!(r#""bench":"hit","variant":"{name}","pages":{nr_pages}"#);
        println!(r#"{{{what},"threads":1,"ns":{median:.1},"ns_min":{least:.1}}}"#);
    }
}

/// Nanoseconds for each of [`READS`] reads of pages in a scattered order.
fn nanos(nr_pages: u64, read: &dyn Fn(u64, &mut Out)) -> f64 {
    let (mut number, mut out) = (1_u64, Box::new(Out([0; PAGE])));
    let start = Instant::now();
    for _ in 0..READS {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        read((number >> 33) % nr_pages, &mut out);
    }
    start.elapsed().as_nanos() as f64 / READS as f64
}
