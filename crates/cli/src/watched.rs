//! Questions to a process that opened a socket.

use crate::failure::Failure;
use crate::output;
use pagetide::{Answer, Snapshot};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer at most: who is at the socket may be anybody.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Asks, and waits for the answer.
fn ask(socket: &Path, question: &str) -> Result<Answer, Failure> {
    answer(socket, &line(socket, question, PATIENCE)?)
}

/// The line that comes back.
fn line(socket: &Path, question: &str, patience: Duration) -> Result<Vec<u8>, Failure> {
    let step = || format!("cannot ask the process at {}", socket.display());
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(format!("{question}\n").as_bytes())?;
        let mut line = Vec::new();
        let mut answer = BufReader::new(stream.take(MAX_ANSWER_BYTES));
        answer.read_until(b'\n', &mut line)?;
        Ok(line)
    };
    ask().map_err(|error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let seconds = patience.as_secs_f64();
            Failure::Run(format!("{}: it did not answer within {seconds} s", step()))
        }
        _ => Failure::of(&step(), &error),
    })
}

/// What a line says.
fn answer(socket: &Path, line: &[u8]) -> Result<Answer, Failure> {
    serde_json::from_slice(line).map_err(|_| {
        // An answer of another version is an object, too.
        let is_object = serde_json::from_slice::<serde_json::Map<_, _>>(line).is_ok();
        match is_object {
            true => unknown(socket),
            false => Failure::Run(format!("{} is no socket of pagetide's", socket.display())),
        }
    })
}

/// A view as text.
pub(crate) fn text(socket: &Path, question: &str) -> Result<String, Failure> {
    match ask(socket, question)? {
        Answer::Text(text) => Ok(output::printable(&text)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn who_does_not_answer_is_told_from_who_is_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        // Nobody accepts.
        let silent = line(&socket, "vmstat", Duration::from_millis(10));
        let silent = silent.expect_err("no answer").to_string();
        assert!(
            silent.ends_with("it did not answer within 0.01 s"),
            "{silent}"
        );
        let other = std::thread::spawn(move || {
            let (_first, _) = listener.accept().expect("the one that gave up");
            let (mut stream, _) = listener.accept().expect("a question");
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n")
                .expect("a reader");
        });
        let another = text(&socket, "vmstat").expect_err("no answer of ours");
        assert!(another.to_string().ends_with("is no socket of pagetide's"));
        other.join().expect("it does not panic");
    }

    #[test]
    fn an_answer_of_another_version_is_one() {
        let of = |line: &[u8]| answer(Path::new("s"), line).map_err(|error| error.to_string());
        let Err(newer) = of(b"{\"later\":1}\n") else {
            panic!("nobody knows it")
        };
        assert!(newer.contains("this version does not know"), "{newer}");
        assert!(of(b"").is_err_and(|error| error.contains("no socket of pagetide's")));
    }
}
