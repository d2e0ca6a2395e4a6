//! The command line of `sim`.

use clap::Args as ClapArgs;
use pagetide_sim::whole::{MAX_CPUS, MAX_NODES};
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
pub(crate) struct SimArgs {
    /// One seed; with `--for` the first one.
    #[arg(long, value_name = "N", conflicts_with = "seeds",
          value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    pub(crate) seed: Option<u64>,
    /// Seeds from A, below B [default: 0..64].
    #[arg(long, value_name = "A..B")]
    pub(crate) seeds: Option<Seeds>,
    /// Go on with further seeds for so long, as in 60s or 5m; one is run in any case.
    #[arg(long = "for", value_name = "TIME", conflicts_with = "seeds")]
    pub(crate) time: Option<humantime::Duration>,
    /// CPUs [default: the seed decides, few more often than many].
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS)))]
    pub(crate) cpus: Option<u32>,
    /// Nodes [default: the seed decides].
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NODES)))]
    pub(crate) nodes: Option<u32>,
    /// Actions of each seed.
    #[arg(long, value_name = "N", default_value = "3000",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) steps: u32,
    /// A trace that the reads of one tenant follow, from where the seed says.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Column of a CSV trace that holds the page number [default: page].
    #[arg(long, value_name = "NAME", requires = "trace")]
    pub(crate) column: Option<String>,
    /// Print one JSON object for each seed instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `0..100`: numbers from the first, below the second.
#[derive(Clone, Debug)]
pub(crate) struct Seeds(pub(crate) std::ops::Range<u64>);

impl std::str::FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let bounds = text.split_once("..");
        let parsed = bounds.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        let seeds = parsed.filter(|seeds: &std::ops::Range<u64>| seeds.start < seeds.end);
        seeds
            .map(Seeds)
            .ok_or_else(|| "two rising numbers are needed, as in 0..100".to_owned())
    }
}
