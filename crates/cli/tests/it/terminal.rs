//! The command at a terminal.

use crate::BIN;
use pagetide::{ByteSize, Memory};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, Winsize};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything here may take, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both ends of a terminal of 100 columns and 40 lines; the second is the command's.
fn terminal() -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = pty::openpt(flags).unwrap();
    pty::grantpt(&ours).unwrap();
    pty::unlockpt(&ours).unwrap();
    let size = Winsize {
        ws_col: 100,
        ws_row: 40,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    termios::tcsetwinsize(&ours, size).unwrap();
    let theirs = pty::ioctl_tiocgptpeer(&ours, flags).unwrap();
    (ours.into(), theirs.into())
}

/// Ended when dropped.
struct Shown(Child);

impl Drop for Shown {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

impl Shown {
    /// Starts the command with its input and its output at a terminal that is not the one which
    /// sends it signals.
    fn start(args: &[&str], theirs: &File) -> Shown {
        let stdio = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = Command::new(BIN);
        command.args(args).stdin(stdio()).stdout(stdio());
        Shown(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Waits until it has ended, and does `each` again and again meanwhile.
    fn end(&mut self, each: impl Fn(&Child)) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            each(&self.0);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads what is shown until `text` is.
fn read_until(ours: &mut File, text: &str) -> String {
    let mut shown = Vec::new();
    let mut bytes = [0; 4096];
    while !String::from_utf8_lossy(&shown).contains(text) {
        let timeout = Timespec::try_from(PATIENCE).unwrap();
        let mut polled = [PollFd::new(ours, PollFlags::IN)];
        let nr_ready = event::poll(&mut polled, Some(&timeout)).unwrap();
        assert!(nr_ready > 0, "{text} is not shown");
        let nr_bytes = ours.read(&mut bytes).unwrap();
        shown.extend_from_slice(&bytes[..nr_bytes]);
    }
    String::from_utf8_lossy(&shown).into_owned()
}

/// Looks at a memory by a `top`; `act` has that, once it has drawn, and both ends of its terminal.
fn beside_top(act: impl FnOnce(Shown, File, File)) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let _watch = memory.watch(&socket).unwrap();
    let (mut ours, theirs) = terminal();
    let socket = socket.to_str().unwrap();
    let top = Shown::start(&["top", socket, "--interval", "0.05"], &theirs);
    read_until(&mut ours, "q: quit");
    act(top, ours, theirs);
}

#[test]
fn top_ends_with_its_terminal() {
    beside_top(|mut top, ours, theirs| {
        drop((ours, theirs));
        let status = top.end(|_| ());
        assert_eq!(status.signal(), Some(1), "{status}");
    });
}

#[test]
fn a_second_signal_ends_a_top_whose_terminal_is_held_up() {
    beside_top(|mut top, _ours, theirs| {
        // As Ctrl-S does: what it draws from now on waits.
        termios::tcflow(&theirs, termios::Action::OOff).unwrap();
        let status = top.end(|child| {
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        });
        assert_eq!(status.signal(), Some(15), "{status}");
    });
}

#[test]
fn names_in_csv_cannot_move_the_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("a\u{1b}[2Jb.txt");
    std::fs::write(&trace, "1\n2\n1\n").unwrap();
    let args = ["mrc", trace.to_str().unwrap(), "--csv", "--frames", "1"];
    let args = [&args[..], &["--policy", "lru"]].concat();
    let (mut ours, theirs) = terminal();
    let mut mrc = Shown::start(&args, &theirs);
    let shown = read_until(&mut ours, "lru,1,");
    assert!(mrc.end(|_| ()).success());
    assert!(shown.contains("a\\u{1b}[2Jb,lru,1,3,3,"), "{shown}");
    // Programs get names as they are.
    let written = Command::new(BIN).args(&args).output().unwrap();
    let written = String::from_utf8(written.stdout).unwrap();
    assert!(written.contains("a\u{1b}[2Jb,lru"), "{written}");
}
