//! `pagetide stat`: one view of a running process.

use crate::args::StatArgs;
use crate::failure::Failure;
use crate::{output, watched};

pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    let question = match &args.group {
        Some(group) => format!("{} {group}", args.view),
        None => args.view.clone(),
    };
    output::text(&watched::text(&args.socket, &question)?)
}
