//! A memory looked at from outside, by its socket and as metrics.

use crate::child;
use pagetide::{Answer, ByteSize, Error, Memory, Order, Snapshot, VIEWS, Watch};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

/// Leaves a socket as a killed process does. Nobody ever listened on it: a child that a test beside
/// this one forks has the descriptor, too, until it runs its program.
fn leave_socket(path: &Path) {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
}

fn ask(path: &Path, question: &str) -> Answer {
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .write_all(format!("{question}\n").as_bytes())
        .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn text(path: &Path, question: &str) -> String {
    match ask(path, question) {
        Answer::Text(text) => text,
        other => panic!("{question}: {other:?}"),
    }
}

fn snapshot(path: &Path) -> Snapshot {
    match ask(path, "snapshot") {
        Answer::Snapshot(snapshot) => *snapshot,
        other => panic!("{other:?}"),
    }
}

fn watched(dir: &tempfile::TempDir) -> (Memory, Watch, std::path::PathBuf) {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let path = dir.path().join("socket");
    let watch = memory.watch(&path).unwrap();
    (memory, watch, path)
}

#[test]
fn groups_are_listed_after_their_parents_while_they_live() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let names = |memory: &Memory| -> Vec<String> {
        let groups = memory.groups().into_iter();
        groups.map(|(path, _)| path).collect()
    };
    assert_eq!(names(&memory), ["/"]);
    let a = memory.root().child("a").unwrap();
    let spaced = memory.root().child("a b").unwrap();
    let leaf = a.child("c").unwrap();
    assert_eq!(leaf.path(), "/a/c");
    assert_eq!(names(&memory), ["/", "/a", "/a/c", "/a b"]);
    drop((a, spaced));
    assert_eq!(
        names(&memory),
        ["/", "/a", "/a/c"],
        "a child keeps its parent"
    );
    drop(leaf);
    assert_eq!(names(&memory), ["/"]);
}

#[test]
fn the_socket_tells_what_the_memory_tells() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, watch, path) = watched(&dir);
    let web = memory.root().child("web").unwrap();
    let web = web.max(ByteSize::mib(4)).unwrap();
    let work = web.alloc(Order::new(4)).unwrap();
    watch.set_requests(&web, 77);
    let snapshot = snapshot(&path);
    assert_eq!(snapshot.pid, std::process::id());
    assert_eq!(snapshot.budget_bytes, 16 << 20);
    assert_eq!(snapshot.groups[0].path, "/");
    let group = &snapshot.groups[1];
    assert_eq!((group.path.as_str(), group.requests), ("/web", Some(77)));
    assert_eq!(group.max_bytes, Some(4 << 20));
    assert_eq!(group.stat["anon"], work.len() as u64);
    assert_eq!(group.usage_bytes, web.usage().as_u64());
    assert!(snapshot.stats["pgalloc"] >= 16);
    assert!(!snapshot.pagesets.is_empty());
    assert_eq!(text(&path, "memory.stat /web"), web.stat().to_string());
    assert_eq!(
        text(&path, "memory.events /web"),
        format!("{}\n", web.events())
    );
    assert!(text(&path, "memory.stat").contains("kernel "));
    let full = text(&path, "lru_gen_full /web");
    assert_eq!(full, web.lru_gen().full().to_string());
    assert!(text(&path, "lru_gen_full").ends_with(&full), "all groups");
    assert!(text(&path, "vmstat").contains("\npgalloc "));
    for view in VIEWS {
        let answer = ask(&path, view);
        assert!(!matches!(answer, Answer::Error(_)), "{view}: {answer:?}");
    }
}

#[test]
fn what_was_told_of_a_group_is_not_said_of_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, watch, path) = watched(&dir);
    let web = memory.root().child("web").unwrap();
    watch.set_requests(&web, 77);
    drop(web);
    let web = memory.root().child("web").unwrap();
    let requests = |path: &Path| snapshot(path).groups[1].requests;
    assert_eq!(requests(&path), None);
    watch.set_requests(&web, 3);
    assert_eq!(requests(&path), Some(3));
    // Nor of one that has its id again, as one of the next thousands has.
    drop(web);
    for nr_groups in 1..=4100 {
        let _web = memory.root().child("web").unwrap();
        assert!(nr_groups < 4090 || requests(&path).is_none(), "{nr_groups}");
    }
    watch.set_requests(&memory.root(), 5);
    assert_eq!(snapshot(&path).groups[0].requests, Some(5));
}

#[test]
fn what_cannot_be_answered_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, _watch, path) = watched(&dir);
    let _web = memory.root().child("web").unwrap();
    for (question, expected) in [
        ("memory.stat /gone", "no group '/gone': one of / /web"),
        (
            "vmstat /web",
            "no view 'vmstat /web': vmstat is of the whole memory",
        ),
        ("", "no view ''"),
        ("memory.max", "no view 'memory.max': one of snapshot vmstat"),
    ] {
        let Answer::Error(error) = ask(&path, question) else {
            panic!("{question} was answered")
        };
        assert!(error.contains(expected), "{question}: {error}");
    }
    let of_web = |path_of_web| text(&path, &format!("memory.stat {path_of_web}"));
    assert_eq!(of_web("web"), of_web("/web"));
    // Who hangs up, or sends what is no text, costs the next one nothing.
    drop(UnixStream::connect(&path).unwrap());
    for (rubbish, expected) in [
        (&[0xFF, 0xFE, b'\n'][..], "a question that is no UTF-8"),
        (&[b'v'; 100_000], "a question of more than 4096 bytes"),
    ] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(rubbish).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let Answer::Error(error) = serde_json::from_str(&answer).unwrap() else {
            panic!("{answer}")
        };
        assert_eq!(error, expected);
    }
    assert!(text(&path, "vmstat").contains("pgalloc"));
}

#[test]
fn who_is_slow_to_ask_holds_nobody_up_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let (_memory, watch, path) = watched(&dir);
    let mut slow = UnixStream::connect(&path).unwrap();
    let asks = std::thread::spawn(move || {
        // A question that does not end, never silent for long.
        let asked = (0..200).take_while(|_| {
            std::thread::sleep(Duration::from_millis(100));
            slow.write_all(b"v").is_ok()
        });
        asked.count()
    });
    let begun = Instant::now();
    assert!(text(&path, "vmstat").contains("pgalloc"));
    drop(watch);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "it was heard out"
    );
    assert!(asks.join().unwrap() < 200);
}

#[test]
fn a_socket_is_closed_at_once_whoever_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let (_memory, watch, path) = watched(&dir);
        let _silent = [(); 3].map(|()| UnixStream::connect(&path).unwrap());
        // It waits for the first of them by then, mostly.
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        drop(watch);
        least = least.min(begun.elapsed());
    }
    assert!(least < Duration::from_millis(500), "{least:?}");
}

#[test]
fn only_its_user_may_open_the_socket_and_it_goes_with_its_handle() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, watch, path) = watched(&dir);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Err(Error::Watch { source, .. }) = memory.watch(&path) else {
        panic!("a socket that is in use was replaced")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
    drop(watch);
    assert!(!path.exists());
    // What a killed process leaves behind is replaced, but nothing that is no socket.
    leave_socket(&path);
    assert!(path.exists());
    drop(memory.watch(&path).unwrap());
    std::fs::write(&path, "mine").unwrap();
    let Err(Error::Watch { source, .. }) = memory.watch(&path) else {
        panic!("a file was replaced")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

/// Whoever is neither the user nor root gets no answer, even where the file would let them.
#[test]
fn others_are_refused_whatever_the_mode_of_the_file() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: another user: only root can become one");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_memory, _watch, path) = watched(&dir);
    for (path, mode) in [(dir.path(), 0o755), (&path, 0o777)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut other = Command::new("python3");
    other.arg("-c").arg(format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({path:?}); \
         s.sendall(b'vmstat\\n'); print(s.recv(4096).decode())"
    ));
    match other.uid(65534).gid(65534).output() {
        Ok(run) if run.status.success() => {
            let answer = String::from_utf8_lossy(&run.stdout).into_owned();
            assert!(answer.contains("its own user and root only"), "{answer}");
        }
        _ => println!("skipped: another user: no python3 to ask as one"),
    }
}

#[test]
fn the_socket_goes_wherever_the_process_is_by_then() {
    if child::role().is_none() {
        return child::run(
            "watch::the_socket_goes_wherever_the_process_is_by_then",
            "elsewhere",
        );
    }
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let watch = memory.watch("socket").unwrap();
    assert!(dir.path().join("socket").exists());
    std::env::set_current_dir("/").unwrap();
    drop(watch);
    assert!(!dir.path().join("socket").exists());
}

#[test]
fn a_name_that_ends_in_a_space_is_a_name_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, _watch, path) = watched(&dir);
    let _web = memory.root().child("web").unwrap();
    let spaced = memory.root().child("web ").unwrap();
    let _held = spaced.reserve(ByteSize::mib(1)).unwrap();
    let has_it = |question: &str| text(&path, question).contains("slab_unreclaimable 1048576\n");
    assert!(has_it("memory.stat /web ") && !has_it("memory.stat /web"));
}

#[test]
fn a_socket_that_is_another_by_now_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, old, path) = watched(&dir);
    std::fs::remove_file(&path).unwrap();
    let _new = memory.watch(&path).unwrap();
    drop(old);
    assert!(text(&path, "vmstat").contains("pgalloc"));
}

/// Also where both find the same one that was left behind.
#[test]
fn of_two_that_open_one_socket_at_once_one_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let small = || Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let memories = [small(), small()];
    for _ in 0..200 {
        leave_socket(&path);
        let barrier = Barrier::new(2);
        let watches = std::thread::scope(|scope| {
            let threads = memories.each_ref().map(|memory| {
                scope.spawn(|| {
                    barrier.wait();
                    memory.watch(&path)
                })
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let nr_open = watches.iter().filter(|watch| watch.is_ok()).count();
        assert_eq!(nr_open, 1);
        assert!(text(&path, "vmstat").contains("pgalloc"));
    }
}

/// As a stopped process has it: it listens, and takes no connection.
#[test]
fn a_socket_whose_process_takes_no_connection_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = SocketAddrUnix::new(&path).unwrap();
    let socket =
        |flags| net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = socket(SocketFlags::CLOEXEC);
    net::bind(&listener, &address).unwrap();
    net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        waiting.push(socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
        match net::connect(waiting.last().unwrap(), &address) {
            Ok(()) => assert!(waiting.len() < 100),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let _gone = send.send(memory.watch(&path).map(drop));
    });
    let opened = receive.recv_timeout(Duration::from_secs(30));
    let Err(Error::Watch { source, .. }) = opened.expect("it waits for the other process") else {
        panic!("a socket that is in use was replaced")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn what_is_told_of_a_group_of_another_memory_is_said_of_none_here() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, watch, path) = watched(&dir);
    let _web = memory.root().child("web").unwrap();
    let other = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let theirs = other.root().child("theirs").unwrap();
    let tell = std::panic::AssertUnwindSafe(|| watch.set_requests(&theirs, 77));
    assert!(std::panic::catch_unwind(tell).is_err());
    assert_eq!(snapshot(&path).groups[1].requests, None);
}
