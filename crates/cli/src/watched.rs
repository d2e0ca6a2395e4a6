//! Questions to a process that opened a socket.

use crate::failure::Failure;
use crate::output;
use pagetide::{Answer, Snapshot};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long an answer may take, to its last byte.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a process is tried that takes no connection.
const TRY: Duration = Duration::from_millis(10);

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
        let mut stream = Timed::connect(socket, patience)?;
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
        // Also of what is no socket.
        ErrorKind::ConnectionRefused => {
            Failure::Run(format!("{}: no process listens there", step()))
        }
        _ => Failure::of(&step(), &error),
    })
}

/// A connection that is given up when its time is over, also where bytes come all the time.
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Timed {
    /// Waits no longer than that where those who wait to be taken are as many as may wait: a
    /// process that is stopped takes nobody.
    fn connect(socket: &Path, patience: Duration) -> io::Result<Timed> {
        let until = Instant::now() + patience;
        let address = SocketAddrUnix::new(socket)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let stream = UnixStream::from(stream);
        loop {
            match net::connect(&stream, &address) {
                Err(Errno::AGAIN) if Instant::now() < until => thread::sleep(TRY),
                connected => break connected?,
            }
        }
        stream.set_nonblocking(false)?;
        Ok(Timed { stream, until })
    }

    /// What is left of the time; the OS takes no timeout of zero.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buf)
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a line says.
fn answer(socket: &Path, line: &[u8]) -> Result<Answer, Failure> {
    serde_json::from_slice(line).map_err(|error| {
        // As a process does that ends meanwhile, or that has waited for us for too long.
        let is_whole = line.ends_with(b"\n") || line.len() as u64 == MAX_ANSWER_BYTES;
        if error.is_eof() && !is_whole {
            let socket = socket.display();
            return Failure::Run(format!("{socket} hung up before the end of its answer"));
        }
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
    use std::sync::mpsc;

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
            // Who hangs up before he has heard it breaks the pipe of who asks.
            let mut heard = BufReader::new(&stream);
            heard.read_line(&mut String::new()).expect("a line");
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n")
                .expect("a reader");
        });
        let another = text(&socket, "vmstat").expect_err("no answer of ours");
        assert!(another.to_string().ends_with("is no socket of pagetide's"));
        other.join().expect("it does not panic");
    }

    #[test]
    fn where_nobody_listens_that_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let (left, file) = (dir.path().join("left"), dir.path().join("file"));
        // Nobody ever listened: a child that is forked beside this has the descriptor, too.
        let flags = SocketFlags::CLOEXEC;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let address = SocketAddrUnix::new(&left).expect("a short path");
        net::bind(socket.expect("a socket"), &address).expect("a new name");
        std::fs::write(&file, "").expect("room");
        for path in [left, file] {
            let refused = text(&path, "vmstat").expect_err("nobody").to_string();
            let asked = format!("cannot ask the process at {}", path.display());
            assert_eq!(refused, format!("{asked}: no process listens there"));
        }
    }

    #[test]
    fn who_takes_no_connection_is_not_waited_for_for_ever() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let address = SocketAddrUnix::new(&socket).expect("a short path");
        let of = |flags| {
            let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
            made.expect("a socket")
        };
        let listener = of(SocketFlags::CLOEXEC);
        net::bind(&listener, &address).expect("a new name");
        net::listen(&listener, 0).expect("a bound one");
        // Those who wait to be taken, until no more may.
        let mut waiting = Vec::new();
        loop {
            waiting.push(of(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
            match net::connect(&waiting[waiting.len() - 1], &address) {
                Ok(()) => assert!(waiting.len() < 100),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            let asked = line(&socket, "vmstat", Duration::from_millis(50));
            let _gone = send.send(asked.map(drop));
        });
        let asked = receive.recv_timeout(Duration::from_secs(30));
        let silent = asked.expect("it waits for ever").expect_err("no answer");
        assert!(silent.to_string().ends_with("answer within 0.05 s"));
    }

    #[test]
    fn an_answer_that_does_not_end_is_given_up() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let answers = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a question");
            // Never silent for as long as it is waited for.
            let nr_told = (0..300).take_while(|_| {
                thread::sleep(Duration::from_millis(10));
                stream.write_all(b" ").is_ok()
            });
            nr_told.count()
        });
        let asked = line(&socket, "vmstat", Duration::from_millis(500));
        let slow = asked.expect_err("no end").to_string();
        assert!(slow.ends_with("it did not answer within 0.5 s"), "{slow}");
        assert!(answers.join().expect("it does not panic") < 300);
    }

    #[test]
    fn an_answer_of_another_version_is_one() {
        let of = |line: &[u8]| answer(Path::new("s"), line).map_err(|error| error.to_string());
        let Err(newer) = of(b"{\"later\":1}\n") else {
            panic!("nobody knows it")
        };
        assert!(newer.contains("this version does not know"), "{newer}");
        assert!(of(b"\n").is_err_and(|error| error.contains("no socket of pagetide's")));
    }

    #[test]
    fn who_hangs_up_before_the_end_is_not_taken_for_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let begun = [&b""[..], b"{", br#"{"text":"pgscan 1\npgst"#];
        let ends = thread::spawn(move || {
            for begun in begun {
                let (mut stream, _) = listener.accept().expect("a question");
                let mut heard = BufReader::new(&stream);
                heard.read_line(&mut String::new()).expect("a line");
                stream.write_all(begun).expect("a reader");
            }
        });
        for _ in begun {
            let cut = text(&socket, "vmstat").expect_err("no end").to_string();
            let told = "hung up before the end of its answer";
            assert_eq!(cut, format!("{} {told}", socket.display()));
        }
        ends.join().expect("it does not panic");
    }
}
