//! Questions to a process that opened a socket.

use crate::failure::Failure;
use pagetide::{Answer, Snapshot};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks, and waits for the answer.
fn ask(socket: &Path, question: &str) -> Result<Answer, Failure> {
    let step = || format!("cannot ask the process at {}", socket.display());
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{question}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    ask().map_err(|error: std::io::Error| Failure::of(&step(), &error))
}

/// A view as text.
pub(crate) fn text(socket: &Path, question: &str) -> Result<String, Failure> {
    match ask(socket, question)? {
        Answer::Text(text) => Ok(text),
        Answer::Snapshot(snapshot) => {
            let text = serde_json::to_string(&snapshot);
            let text = text.map_err(|error| Failure::of("cannot write JSON", &error))?;
            Ok(text + "\n")
        }
        Answer::Error(error) => Err(Failure::Run(error)),
        _ => Err(unknown(socket)),
    }
}

/// The figures.
pub(crate) fn snapshot(socket: &Path) -> Result<Snapshot, Failure> {
    match ask(socket, "snapshot")? {
        Answer::Snapshot(snapshot) => Ok(*snapshot),
        Answer::Error(error) => Err(Failure::Run(error)),
        _ => Err(unknown(socket)),
    }
}

fn unknown(socket: &Path) -> Failure {
    let socket = socket.display();
    Failure::Run(format!(
        "{socket} answered in a way that this version does not know"
    ))
}
