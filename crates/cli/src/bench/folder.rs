//! A folder for data files that need names, held by a process of its own: that removes it when
//! whoever started it has ended, in whatever way.

use super::held::{self, Held};
use crate::args::FolderArgs;
use crate::failure::Failure;
use crate::output;
use std::path::{Path, PathBuf};

/// What cannot be done where there is none.
const STEP: &str = "cannot make a folder for data files";

/// The other side of a holder; the folder is gone when it is dropped.
pub(super) struct Folder {
    _held: Held,
    path: PathBuf,
}

impl Folder {
    /// An empty one in `dir`, or in the temporary folder.
    pub(super) fn make(dir: Option<&Path>) -> Result<Folder, Failure> {
        let (_held, made) = Held::start(STEP, "folder-holder", |command| {
            if let Some(dir) = dir {
                command.arg("--dir").arg(dir);
            }
        })?;
        let made: Result<PathBuf, String> = made;
        let path = made.map_err(Failure::Run)?;
        Ok(Folder { _held, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The process that holds.
pub(super) fn serve(args: &FolderArgs) -> Result<(), Failure> {
    let made = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let path = made.as_ref().map(|folder| folder.path().to_owned());
    let told = output::json(&path.map_err(|error| format!("{STEP}: {error}")));
    held::wait_for_end(told.is_ok());
    let removed = made.map_or(Ok(()), tempfile::TempDir::close);
    removed.map_err(|error| Failure::of("cannot remove the data files", &error))?;
    told
}
