//! A folder for data files that need names, held by a process of its own: that removes it when
//! whoever started it has ended, in whatever way.

use crate::args::FolderArgs;
use crate::failure::Failure;
use crate::output;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The other side of a holder; the folder is gone when it is dropped.
pub(super) struct Folder {
    process: Child,
    path: PathBuf,
}

impl Folder {
    /// An empty one in `dir`, or in the temporary folder.
    pub(super) fn make(dir: Option<&Path>) -> Result<Folder, Failure> {
        let failed = |error: io::Error| Failure::of("cannot make a folder for data files", &error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["bench", "folder-holder"]);
        if let Some(dir) = dir {
            command.arg("--dir").arg(dir);
        }
        // Of a process group of its own, to which no terminal sends Ctrl-C.
        command.process_group(0);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut line = String::new();
        let out = process.stdout.as_mut().expect("piped");
        let read = BufReader::new(out).read_line(&mut line);
        let mut folder = Folder {
            process,
            path: PathBuf::new(),
        };
        read.map_err(failed)?;
        let made: Result<PathBuf, String> = serde_json::from_str(&line)
            .map_err(|error| Failure::of("cannot make a folder for data files", &error))?;
        folder.path = made.map_err(Failure::Run)?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It ends with its input, and says itself what it cannot remove.
        drop(self.process.stdin.take());
        let _status = self.process.wait();
    }
}

/// The process that holds.
pub(super) fn serve(args: &FolderArgs) -> Result<(), Failure> {
    let made = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let path = made.as_ref().map(|folder| folder.path().to_owned());
    let told = output::json(
        &path.map_err(|error| format!("cannot make a folder for data files: {error}")),
    );
    // Until whoever asked has ended, or says so by closing the pipe.
    let _end = io::stdin().read_to_end(&mut Vec::new());
    let removed = made.map_or(Ok(()), tempfile::TempDir::close);
    removed.map_err(|error| Failure::of("cannot remove the data files", &error))?;
    told
}
