//! A socket through which others look at a memory: `pagetide top` and `pagetide stat`.
//!
//! A connection is one question, a line of text, and one answer, a line of JSON; the server takes
//! one at a time, and waits [`PATIENCE`] at most for the question and for the answer to be taken,
//! so that nobody who connects can hold up more.

use crate::shared::locked;
use crate::snapshot::Snapshot;
use crate::worker::piece;
use crate::{Error, Group, Memory, group};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a connection may take to ask, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a folder's lock may be another's, and how often it is tried.
const TURN: Duration = Duration::from_secs(1);
const TURN_STEP: Duration = Duration::from_millis(1);
/// Connections that wait to be taken.
const BACKLOG: i32 = 16;
/// Bytes of a question at most.
const MAX_QUESTION: u64 = 4096;
/// Groups that are named to who asks for one that is not there.
const MAX_NAMED: usize = 16;

/// What can be asked for: each name, followed by a group's path where it is of one group.
pub const VIEWS: &[&str] = &[
    "snapshot",
    "vmstat",
    "zoneinfo",
    "buddyinfo",
    "stocks",
    "lru_gen",
    "lru_gen_full",
    "memory.stat",
    "memory.pressure",
    "memory.events",
    #[cfg(feature = "metrics")]
    "metrics",
];

/// An answer of the socket, a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// What was asked for, as the kernel's file of that name would have it.
    Text(String),
    /// The figures.
    Snapshot(Box<Snapshot>),
    /// Why there is no answer.
    Error(String),
}

/// An open socket. Dropped, it is closed and its file removed, unless another is there by then.
#[derive(Debug)]
#[must_use = "the socket is open as long as this lives"]
pub struct Watch {
    path: PathBuf,
    /// Which file it was when it was made: another one there is a successor's.
    inode: Inode,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    memory: Memory,
    listener: UnixListener,
    is_closed: AtomicBool,
    /// Who is answered, to be heard no longer when it is closed.
    heard: Mutex<Option<UnixStream>>,
    /// What the program told of groups, by their ids.
    requests: Mutex<HashMap<u32, (Weak<group::Node>, u64)>>,
}

impl Memory {
    /// Opens a socket at `path` through which `pagetide top PATH` and `pagetide stat PATH VIEW`
    /// look at this memory, and starts a thread that answers. It keeps the memory alive.
    ///
    /// Only this user's processes and root's are answered: the file has mode 0600, and the kernel
    /// is asked who connects. Nothing can be changed through it. A socket of that name which
    /// nobody listens on any more, as a process leaves it that was killed, is replaced.
    ///
    /// # Errors
    /// [`Error::Watch`].
    pub fn watch(&self, path: impl AsRef<Path>) -> Result<Watch, Error> {
        self.home().check_process()?;
        let path = path.as_ref();
        let failed = |source| Error::Watch {
            path: path.to_owned(),
            source,
        };
        // It is removed from there wherever the process is by then.
        let whole = std::path::absolute(path).map_err(failed)?;
        let (listener, inode) = listen(path, &whole).map_err(failed)?;
        let state = Arc::new(State::new(self.clone(), listener));
        let served = Arc::clone(&state);
        let mut watch = Watch {
            path: whole,
            inode,
            state,
            thread: None,
        };
        let thread = thread::Builder::new().name("pagetide-watch".to_owned());
        let thread = thread.spawn(move || served.serve(|stream| served.answer(stream)));
        watch.thread = Some(thread.map_err(failed)?);
        Ok(watch)
    }
}

impl Watch {
    /// Says how many requests the users of a group made so far. The library counts misses only,
    /// because a hit would cost more if it were counted; with both, `top` shows hit ratios.
    ///
    /// # Panics
    /// Where the group is of another memory: its number may be that of some group of this one, too.
    #[track_caller]
    pub fn set_requests(&self, group: &Group, requests: u64) {
        if self.state.memory.home().is_forked() {
            return;
        }
        assert!(
            group.shared().is(self.state.memory.home()),
            "a socket and the group that it tells of are of one memory"
        );
        let mut told = locked(&self.state.requests);
        if told.len() == told.capacity() {
            let root = self.state.memory.home().core.groups().root();
            told.retain(|&id, (group, _)| id == root || group.strong_count() > 0);
        }
        told.insert(group.id(), (group.downgrade(), requests));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.state.memory.home().is_forked() {
            // The socket is the parent's, and so is the thread: to drop its handle would detach one
            // of this process.
            mem::forget(self.thread.take());
            return;
        }
        self.state.is_closed.store(true, Ordering::Relaxed);
        // While it listens, nobody takes the file for a left-over one and replaces it.
        if inode_of(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _removed = fs::remove_file(&self.path);
        }
        // Ends the `accept` that the thread waits in.
        let _ended = net::shutdown(&self.state.listener, net::Shutdown::Both);
        if let Some(heard) = &*locked(&self.state.heard) {
            let _gone_away = heard.shutdown(Shutdown::Read);
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A waker that the thread itself ran may drop this: it ends by itself then.
        if thread.thread().id() != thread::current().id() {
            let joined = thread.join();
            debug_assert!(joined.is_ok(), "the thread that answers does not panic");
        }
    }
}

impl State {
    fn new(memory: Memory, listener: UnixListener) -> State {
        State {
            memory,
            listener,
            is_closed: AtomicBool::new(false),
            heard: Mutex::default(),
            requests: Mutex::default(),
        }
    }

    fn serve(&self, answer: impl Fn(&UnixStream) -> io::Result<()>) {
        for stream in self.listener.incoming() {
            let heard = stream.and_then(|stream| Ok((stream.try_clone()?, stream)));
            let (heard, stream) = heard.ok().unzip();
            *locked(&self.heard) = heard;
            // Looked at behind that: who closes it says so before he looks who is heard.
            if self.is_closed.load(Ordering::Relaxed) {
                break;
            }
            match stream {
                // Who went away, or may not ask, is nobody's trouble but their own; nor is it the
                // next one's where something unwinds, as a waker that is run here.
                Some(stream) => drop(piece(|| answer(&stream))),
                // Out of descriptors, the next `accept` fails at once: not to spin, it waits.
                None => thread::sleep(Duration::from_millis(50)),
            }
            *locked(&self.heard) = None;
        }
    }

    fn answer(&self, stream: &UnixStream) -> io::Result<()> {
        if !is_allowed(stream)? {
            let problem = "this socket answers its own user and root only";
            return tell(stream, &Answer::Error(problem.to_owned()));
        }
        let mut question = Vec::new();
        let timed = Timed::new(stream).take(MAX_QUESTION);
        BufReader::new(timed).read_until(b'\n', &mut question)?;
        if question.len() as u64 == MAX_QUESTION && !question.ends_with(b"\n") {
            let problem = format!("a question of more than {MAX_QUESTION} bytes");
            tell(stream, &Answer::Error(problem))?;
            // To close with bytes unread would take the answer away from who sends them.
            stream.shutdown(Shutdown::Write)?;
            return io::copy(&mut Timed::new(stream), &mut io::sink()).map(drop);
        }
        let answer = match str::from_utf8(&question) {
            Ok(question) => self.view(question.trim_end_matches(['\r', '\n'])),
            Err(_) => Answer::Error("a question that is no UTF-8".to_owned()),
        };
        tell(stream, &answer)
    }

    fn view(&self, question: &str) -> Answer {
        let memory = &self.memory;
        let _look = memory.home().looks.begin(None);
        let (view, path) = question.split_once(' ').unwrap_or((question, ""));
        let text = match (view, path) {
            ("snapshot", "") => return Answer::Snapshot(Box::new(self.snapshot())),
            ("vmstat", "") => memory.stats().to_string(),
            ("zoneinfo", "") => memory.zoneinfo(),
            ("buddyinfo", "") => memory.buddyinfo(),
            ("stocks", "") => memory.stock_stats().to_string(),
            #[cfg(feature = "metrics")]
            ("metrics", "") => memory.metrics(),
            ("lru_gen", "") => {
                let groups = memory.groups();
                let texts = groups.iter().map(|(_, group)| group.lru_gen().to_string());
                texts.collect()
            }
            ("lru_gen", _) => return self.of_group(path, |group| group.lru_gen().to_string()),
            ("lru_gen_full", "") => {
                let groups = memory.groups();
                let texts = groups.iter().map(|(_, group)| lru_gen_full(group));
                texts.collect()
            }
            ("lru_gen_full", _) => return self.of_group(path, lru_gen_full),
            ("memory.stat", _) => return self.of_group(path, |group| group.stat().to_string()),
            ("memory.pressure", _) => {
                return self.of_group(path, |group| format!("{}\n", group.pressure()));
            }
            ("memory.events", _) => {
                return self.of_group(path, |group| format!("{}\n", group.events()));
            }
            _ => return Answer::Error(no_view(question)),
        };
        Answer::Text(text)
    }

    /// The root where no path is given; of one the first slash may be left out.
    fn of_group(&self, path: &str, view: impl FnOnce(&Group) -> String) -> Answer {
        let path = format!("/{}", path.strip_prefix('/').unwrap_or(path));
        let groups = self.memory.groups();
        match groups.iter().find(|(of_group, _)| *of_group == path) {
            Some((_, group)) => Answer::Text(view(group)),
            None => Answer::Error(no_group(&path, &groups)),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let (mut snapshot, groups) = self.memory.snapshot_of_groups();
        let told = locked(&self.requests);
        for (of_group, (_, group)) in snapshot.groups.iter_mut().zip(&groups) {
            let told = told.get(&group.id()).filter(|(of, _)| group.is(of));
            of_group.requests = told.map(|&(_, requests)| requests);
        }
        drop(told);
        snapshot
    }
}

fn tell(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    Timed::new(stream).write_all(&line)
}

fn no_view(question: &str) -> String {
    match question.split_once(' ') {
        Some((view, _)) if VIEWS.contains(&view) => {
            format!("no view '{question}': {view} is of the whole memory")
        }
        _ => format!("no view '{question}': one of {}", VIEWS.join(" ")),
    }
}

fn no_group(path: &str, groups: &[(String, Group)]) -> String {
    let named = groups.iter().take(MAX_NAMED);
    let paths: Vec<&str> = named.map(|(path, _)| &**path).collect();
    let more = if groups.len() > MAX_NAMED { " .." } else { "" };
    format!("no group '{path}': one of {}{more}", paths.join(" "))
}

/// A connection that is given up after [`PATIENCE`], also where bytes come or go all the time.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Timed<'_> {
    fn new(stream: &UnixStream) -> Timed<'_> {
        let until = Instant::now() + PATIENCE;
        Timed { stream, until }
    }

    /// What is left of the time; the OS takes no timeout of zero.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.checked_duration_since(Instant::now());
        match left.filter(|left| !left.is_zero()) {
            None => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&mut &*self.stream).read(buf)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A group's generations and their tiers.
fn lru_gen_full(group: &Group) -> String {
    group.lru_gen().full().to_string()
}

/// Whether the process at the other end is this user's or root's, as the kernel saw it connect.
fn is_allowed(stream: &UnixStream) -> io::Result<bool> {
    let peer = sockopt::socket_peercred(stream)?;
    Ok(peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// A file's device and number. No other file has them while a socket that is bound to it is open.
type Inode = (u64, u64);

fn inode_of(path: &Path) -> io::Result<Inode> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// A socket at `path`, in full `whole`, that has mode 0600 from the moment it is there.
fn listen(path: &Path, whole: &Path) -> io::Result<(UnixListener, Inode)> {
    // One at a time: of two that find the same left-over socket, the second would remove what the
    // first has made. One that is bound and does not listen yet looks like a left-over one, too.
    let folder = whole.parent().and_then(locked_folder);
    let listener = match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => take_over(path, error),
        bound => bound,
    };
    let made = listener.and_then(|listener| Ok((listener, inode_of(path)?)));
    // A child that was forked meanwhile has the descriptor, too: to close ours is not enough.
    let _unlocked = folder.map(|folder| folder.unlock());
    made
}

/// Replaces what is there, which is `in_use`, where nobody listens on it.
fn take_over(path: &Path, in_use: io::Error) -> io::Result<UnixListener> {
    if !is_left_over(path)? {
        return Err(in_use);
    }
    fs::remove_file(path)?;
    bind(path)
}

/// The folder, locked; none where it cannot be read or locked, or where another has the lock for
/// longer than who makes a socket.
fn locked_folder(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    let until = Instant::now() + TURN;
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(TURN_STEP),
            Err(_) => return None,
        }
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The kernel makes the file with the mode that the socket has.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Whether it is a socket that nobody listens on.
fn is_left_over(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let problem = "there is something of that name, which is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    // Who listens and does not accept, as a process that is stopped, would keep it waiting.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let connected = net::connect(&socket, &SocketAddrUnix::new(path)?);
    Ok(connected == Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytesize::ByteSize;
    use std::sync::mpsc;

    #[test]
    fn an_answer_that_unwinds_is_not_the_last_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let (listener, _) = listen(&path, &path).expect("new");
        let memory = Memory::builder().budget(ByteSize::mib(8)).build();
        let state = Arc::new(State::new(memory.expect("a small memory"), listener));
        let (tell, told) = mpsc::channel();
        let served = Arc::clone(&state);
        let serves = thread::spawn(move || {
            served.serve(|_| {
                tell.send(()).expect("it is awaited");
                // Without a word to the panic hook.
                std::panic::resume_unwind(Box::new("an answer that unwinds"));
            });
        });
        for _ in 0..2 {
            let _asks = UnixStream::connect(&path).expect("somebody listens");
            told.recv().expect("it is served");
        }
        state.is_closed.store(true, Ordering::Relaxed);
        net::shutdown(&state.listener, net::Shutdown::Both).expect("it listens");
        serves.join().expect("it ends");
    }

    #[test]
    fn a_socket_may_be_dropped_by_the_thread_that_answers() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let memory = Memory::builder().budget(ByteSize::mib(8)).build();
        let mut watch = memory.expect("a small memory").watch(&path).expect("new");
        let (give, given) = mpsc::channel::<Watch>();
        let (tell, told) = mpsc::channel();
        // In its place, as a waker has it done there.
        let drops = thread::spawn(move || {
            drop(given.recv().expect("it is given"));
            tell.send(()).expect("it is awaited");
        });
        let answers = watch.thread.replace(drops).expect("it runs");
        give.send(watch).expect("it is awaited");
        told.recv().expect("it does not panic");
        answers.join().expect("it ends");
        assert!(!path.exists());
    }
}
