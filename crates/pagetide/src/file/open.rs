//! Files that are open: shared by all handles, written back when the last one goes.

use super::File;
use super::ahead::{Readers, Wish};
use crate::Error;
use crate::backing::{Backing, Source, number_of};
use crate::group::Group;
use crate::home::Home;
use crate::hooks::{Given, Hooked};
use crate::open_files::FileKey;
use crate::park::Panics;
use crate::policy::Order;
use crate::store::{DirectFile, Store, uninterrupted};
use crate::trace;
use pagetide_core::memory::Here;
use std::fmt;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock, Weak};

/// An open file: one mapping of core.
pub(crate) struct Open {
    pub(super) shared: Home,
    pub(super) mapping: u32,
    pub(super) order: pagetide_core::units::Order,
    pub(super) backing: Arc<Backing>,
    /// Those who read it one page after the other.
    pub(super) readers: Readers,
    /// How a file of the system is found by those who open it again.
    key: Option<FileKey>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let (shared, backing) = (&self.shared, &*self.backing);
        // A store may unwind, and who is woken: the file is closed all the same.
        let mut panics = Panics::default();
        // What the store cannot do now is lost: `File::close` says so before.
        panics.catch(|| {
            let _behind = backing
                .check_poison()
                .and_then(|()| backing.catch_up(shared));
        });
        panics.catch(|| {
            shared.write_all_it_takes(backing);
        });
        // What was not tried any more may be clean: others write, too, and take it off afterwards.
        backing.settle_all(shared, 0..=u64::MAX);
        let nr_lost = backing.nr_dirty();
        if nr_lost > 0 {
            shared.count_lost(nr_lost);
            trace::pages_lost(&backing.name, nr_lost);
        }
        if let Source::File { reader, .. } = &backing.source {
            shared.count_buffered(reader.nr_buffered_reads());
        }
        while backing.is_in_flight() {
            panics.catch(|| shared.wait_for_flights(backing));
        }
        panics.catch(|| shared.close_mapping(self.mapping));
        backing.forget_dirty(shared);
        // A sync that was given up may be under way: it cuts no file that is opened anew.
        backing.behind.turn().end();
        if let Some(region) = backing.source.region() {
            // Now, though somebody may be looking at it: the slots are for others, and the name of
            // its group for the next one.
            panics.catch(|| region.give_up());
        }
        let mut backings = shared.backings();
        // The number may be another file's already.
        let is_ours = |other: &Arc<Backing>| Arc::ptr_eq(other, &self.backing);
        if backings.get(&backing.number()).is_some_and(is_ours) {
            backings.remove(&backing.number());
        }
        drop(backings);
        if let Some(key) = self.key {
            shared.forget_file(key);
        }
        panics.go_on();
    }
}

/// A group that a file is to be read for.
///
/// # Panics
/// Where it is of another memory: its number may be that of some group of this one, too.
#[track_caller]
pub(crate) fn expect_together(shared: &Home, group: &Group) {
    let is_ours = group.shared().is(shared);
    assert!(
        is_ours,
        "a file and the group that reads it are of one memory"
    );
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backing.fmt(f)
    }
}

impl Open {
    /// The error of who opens its file with pages of another size or beginning.
    fn refuses(&self, name: String) -> Error {
        let base = self.key.map_or(0, |(_, _, (_, base))| base);
        let problem = format!(
            "it is open with pages of {} bytes, the first at byte {base}",
            self.backing.order.bytes()
        );
        let (path, source) = (name.into(), io::Error::other(problem));
        Error::Open { path, source }
    }

    /// One more opens it, by `file`: it writes by this one where it is writable and nothing was
    /// written by another one before.
    fn join(&self, file: DirectFile, given: Option<&Given>) -> Result<(), Error> {
        self.check_hooks(given)?;
        if let Source::File { reader, writer } = &self.backing.source
            && file.is_writable()
            && !reader.is_writable()
        {
            let _another = writer.set(file);
        }
        Ok(())
    }

    pub(crate) fn home(&self) -> &Home {
        &self.shared
    }

    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    fn set_hooks(&self, hooked: Option<Hooked>) {
        if let Some(hooked) = hooked {
            let first = self.backing.hooked.set(hooked);
            assert!(first.is_ok(), "hooks are set when a file is opened first");
        }
    }

    /// Whether who opens the file again means the hooks that it has.
    fn check_hooks(&self, given: Option<&Given>) -> Result<(), Error> {
        let hooked = self.backing.hooked.get();
        match given {
            Some(given) if !hooked.is_some_and(|hooked| hooked.is_of(given)) => {
                let source = io::Error::other(match hooked {
                    Some(_) => "it is open with other hooks",
                    None => "it is open without hooks",
                });
                let path = (*self.backing.name).into();
                Err(Error::Open { path, source })
            }
            _ => Ok(()),
        }
    }

    fn new(
        mapping: Spare<'_>,
        source: Source,
        name: String,
        (key, len_found): (Option<FileKey>, Option<u64>),
    ) -> Result<Open, Error> {
        let failed = |source| Error::Open {
            path: name.clone().into(),
            source,
        };
        let len = len_found.map_or_else(|| uninterrupted(|| source.store().len()), Ok);
        let len = len.map_err(failed)?;
        let (shared, order) = (mapping.shared, mapping.order);
        let mapping = mapping.take();
        Ok(Open::of(shared, (mapping, order), (source, len), name, key))
    }

    /// Takes over a mapping of core's.
    pub(super) fn of(
        shared: &Home,
        (mapping, order): (u32, pagetide_core::units::Order),
        (source, len): (Source, u64),
        name: String,
        key: Option<FileKey>,
    ) -> Open {
        let readers = Readers::new(shared.readahead.max_bytes(&source));
        let backing = Backing::new(mapping, order, name.into(), source, len);
        let backing = Arc::new(backing);
        let mut backings = shared.backings();
        backings.insert(number_of(mapping), Arc::clone(&backing));
        drop(backings);
        Open {
            shared: shared.clone(),
            mapping,
            order,
            backing,
            readers,
            key,
        }
    }
}

/// A mapping of core's that is no file's yet: closed when it is dropped.
struct Spare<'a> {
    shared: &'a Home,
    mapping: u32,
    order: pagetide_core::units::Order,
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        self.shared.close_mapping(self.mapping);
    }
}

impl<'a> Spare<'a> {
    /// By a caller `here`: one that may reclaim has no lock, because that calls foreign code.
    ///
    /// # Errors
    /// [`Error::NoMetadata`].
    fn new(shared: &'a Home, here: Here<'_>, order: Order) -> Result<Spare<'a>, Error> {
        let order = order.to_core();
        let mapping = shared.core.open_mapping(here, order);
        let mapping = mapping.map_err(|_| Error::NoMetadata { what: "a file" })?;
        Ok(Spare {
            shared,
            mapping,
            order,
        })
    }

    /// A file's from here on.
    fn take(self) -> u32 {
        std::mem::ManuallyDrop::new(self).mapping
    }
}

impl Clone for File {
    fn clone(&self) -> File {
        self.for_group(&self.group)
    }
}

impl File {
    pub(super) fn of(open: Arc<Open>, group: &Group, may_write: bool) -> File {
        if may_write && open.backing.source.region().is_none() && !open.shared.is_forked() {
            open.shared.shared().start_flusher();
            if let Some(file) = open.backing.source.written_file() {
                // The ring is made now: reclaim may be the first who writes, and makes none.
                let _has_many = open.shared.io.has_many_writes(file);
            }
        }
        let errors = open.shared.core.write_errors(open.mapping);
        let wish = Wish::new(open.readers.max_bytes);
        File {
            open,
            group: group.clone(),
            may_write,
            wish,
            seen_errors: AtomicU32::new(errors.nr_errors),
        }
    }

    /// The file was created in `folder`.
    pub(crate) fn is_new_in(&self, folder: std::fs::File) {
        self.open.backing.is_new_in(folder);
    }

    /// The same file for another group: what this handle brings in is charged to it. It is read
    /// ahead as this one.
    ///
    /// # Panics
    /// Where the group is of another [`Memory`](crate::Memory).
    #[must_use]
    pub fn for_group(&self, group: &Group) -> File {
        expect_together(&self.open.shared, group);
        File {
            wish: self.wish.clone(),
            ..File::of(Arc::clone(&self.open), group, self.may_write)
        }
    }

    /// Opens a file of the system, or shares the pages of those who have it open. `nr_closed` is
    /// how many files were closed before it was looked at.
    pub(crate) fn open_direct(
        shared: &Home,
        (file, nr_closed): (DirectFile, u64),
        name: String,
        (order, hooks): (Order, Option<Given>),
        group: &Group,
    ) -> Result<File, Error> {
        expect_together(shared, group);
        shared.check_process()?;
        let (device, inode) = file.identity();
        let may_write = file.is_writable();
        let pages = (order.to_core().get(), file.base());
        let key = (device, inode, pages);
        // What a file that is not open needs. Made without the lock: this may have to reclaim.
        let mut hooked = None;
        let mut spare = None;
        // Open while they are looked at: each may be the last handle, whose end takes the lock.
        let mut kept = Vec::new();
        let mut files = shared.files();
        let spare = loop {
            let all = files.of((device, inode)).iter();
            let others = all.filter(|(other, _)| *other != pages);
            let writes = |open: &Arc<Open>| may_write || open.backing.source.is_writable();
            let others: Vec<_> = others.map(|(_, open)| open.upgrade()).collect();
            let is_closing = others.iter().any(Option::is_none);
            kept.extend(others.into_iter().flatten());
            if let Some(open) = kept.iter().find(|open| writes(open)) {
                return Err(open.refuses(name));
            }
            if is_closing {
                // The last handle of one is just writing it back.
                files = shared.wait_closed(files);
                continue;
            }
            match files.get(key).map(Weak::upgrade) {
                Some(Some(open)) => {
                    let joined = open.join(file, hooks.as_ref());
                    // Where it fails, this may be the last handle, whose end takes the lock.
                    drop(files);
                    return joined.map(|()| File::of(open, group, may_write));
                }
                // Its last handle is just writing it back.
                Some(None) => {
                    files = shared.wait_closed(files);
                    continue;
                }
                None => {}
            }
            if hooks.is_some() && hooked.is_none() {
                drop(files);
                hooked = Hooked::of(hooks.clone(), group, order)?;
                files = shared.files();
                continue;
            }
            let here = shared.here().waiting_for_reads();
            let made = spare
                .take()
                .map_or_else(|| Spare::new(shared, here.without_reclaim(), order), Ok);
            match made {
                Ok(spare) => break spare,
                Err(_) if here.may_reclaim => {
                    drop(files);
                    spare = Some(Spare::new(shared, here, order)?);
                    files = shared.files();
                }
                Err(error) => return Err(error),
            }
        };
        // A file that was closed meanwhile may be this one, longer now.
        let is_fresh = shared.nr_closed() == nr_closed;
        let len_found = is_fresh.then(|| file.len_found());
        let source = Source::File {
            reader: file,
            writer: OnceLock::new(),
        };
        let open = Arc::new(Open::new(spare, source, name, (Some(key), len_found))?);
        open.set_hooks(hooked);
        files.insert(key, Arc::downgrade(&open));
        Ok(File::of(open, group, may_write))
    }

    pub(crate) fn open_store(
        shared: &Home,
        store: Box<dyn Store>,
        name: String,
        (order, hooks): (Order, Option<Given>),
        group: &Group,
    ) -> Result<File, Error> {
        expect_together(shared, group);
        let may_write = store.is_writable();
        let hooked = Hooked::of(hooks, group, order)?;
        shared.check_process()?;
        let mapping = Spare::new(shared, shared.here().waiting_for_reads(), order)?;
        let source = Source::Store(store);
        let open = Arc::new(Open::new(mapping, source, name, (None, None))?);
        open.set_hooks(hooked);
        Ok(File::of(open, group, may_write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};
    use std::fs;

    #[test]
    fn a_file_that_was_closed_since_it_was_found_is_as_long_as_it_is_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, [1; 100]).unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let (home, root) = (memory.home(), memory.root());
        let nr_closed = home.nr_closed();
        let found = DirectFile::open(&path).unwrap();
        let longer = memory.open_rw(&path, &root).unwrap();
        longer.write_at(&[2; 5000], 0).unwrap();
        drop(longer);
        let with = (Order::new(0), None);
        let file = File::open_direct(home, (found, nr_closed), "late".to_owned(), with, &root);
        let file = file.unwrap();
        assert_eq!(file.len(), 5000);
        assert_eq!(file.read_at(&mut [0; 8192], 0).unwrap(), 5000);
    }

    /// Opens and closes a file again and again, with pages of a few sizes.
    fn open_and_close(memory: &Memory, path: &std::path::Path, orders: std::ops::Range<u8>) {
        for order in orders.cycle().take(200_000) {
            let options = crate::OpenOptions::new().order(Order::new(order));
            drop(options.open(memory, path, &memory.root()).unwrap());
        }
    }

    /// For how long the calling thread has a CPU to open a file many times that is open.
    fn time_to_open(memory: &Memory, path: &std::path::Path) -> std::time::Duration {
        let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let begin = now();
        for _ in 0..50 {
            drop(memory.open(path, &memory.root()).unwrap());
        }
        std::time::Duration::try_from(now() - begin).unwrap()
    }

    #[test]
    fn to_open_a_file_is_no_look_at_all_that_are_open() {
        let data = tempfile::NamedTempFile::new().unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let _first = memory.open(data.path(), &memory.root()).unwrap();
        let alone = time_to_open(&memory, data.path());
        let mut files = memory.home().files();
        for inode in 0..200_000 {
            files.insert((u64::MAX, inode, (0, 0)), Weak::new());
        }
        drop(files);
        let beside_many = time_to_open(&memory, data.path());
        // A look at each would be a hundred times as much.
        let few = 10 * alone + std::time::Duration::from_millis(5);
        assert!(beside_many < few, "{beside_many:?}, alone {alone:?}");
    }

    #[test]
    fn who_looks_whether_a_file_is_open_does_not_close_it() {
        let data = tempfile::NamedTempFile::new().unwrap();
        fs::write(data.path(), [1; 100]).unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let (over, is_over) = std::sync::mpsc::channel();
        for orders in [0..3, 3..6] {
            let (memory, over) = (memory.clone(), over.clone());
            let path = data.path().to_owned();
            std::thread::spawn(move || {
                open_and_close(&memory, &path, orders);
                over.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            let minute = std::time::Duration::from_secs(60);
            is_over
                .recv_timeout(minute)
                .expect("somebody waits for himself");
        }
    }

    /// Closes a file where it is asked for memory.
    struct Closes(std::sync::Mutex<Option<File>>);

    impl crate::Shrinker for Closes {
        fn count(&self) -> u64 {
            u64::from(crate::shared::locked(&self.0).is_some())
        }

        fn scan(&self, nr_objects: u64) -> Option<u64> {
            let file = crate::shared::locked(&self.0).take();
            file.map(|_| nr_objects)
        }
    }

    #[test]
    fn who_is_asked_for_the_record_of_a_file_may_close_another() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let (over, is_over) = std::sync::mpsc::channel();
        let path = folder.path().to_owned();
        std::thread::spawn(move || {
            let root = memory.root();
            let open = |number: u32| {
                let path = path.join(number.to_string());
                fs::write(&path, [1; 100]).unwrap();
                memory.open(path, &root)
            };
            let closed = open(0).unwrap();
            // All of the budget is in use.
            let alloc = || root.alloc(Order::new(0)).ok();
            let bufs: Vec<crate::Buf> = std::iter::from_fn(alloc).collect();
            let closes = Arc::new(Closes(Some(closed).into()));
            let registered = root.add_shrinker(Arc::clone(&closes));
            // More than the records of files that there is room for. After it was asked each one
            // would be refused, which takes long where others want the CPU.
            let is_asked = || crate::shared::locked(&closes.0).is_none();
            let files: Vec<_> = (1..200).take_while(|_| !is_asked()).map(open).collect();
            over.send(is_asked()).unwrap();
            drop((registered, files, bufs));
        });
        let minute = std::time::Duration::from_secs(60);
        let is_asked = is_over
            .recv_timeout(minute)
            .expect("who opens waits for himself");
        assert!(is_asked, "there was room");
    }

    #[test]
    fn who_opens_a_file_that_is_written_writes_by_the_same_descriptor() {
        let data = tempfile::NamedTempFile::new().unwrap();
        fs::write(data.path(), [7; 4096]).unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let open = || memory.open_rw(data.path(), &memory.root()).unwrap();
        let (first, _second) = (open(), open());
        let source = &first.open.backing.source;
        let [read, written] = [source.file(), source.written_file()].map(Option::unwrap);
        assert!(std::ptr::eq(read, written));
    }

    #[test]
    fn a_name_that_was_not_made_durable_is_not_taken_for_durable_later() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let options = crate::OpenOptions::new().write(true).create(true);
        let path = folder.path().join("data");
        let file = options.open(&memory, path, &memory.root()).unwrap();
        // It cannot be synced.
        file.is_new_in(fs::File::open("/dev/null").unwrap());
        assert!(file.sync().is_err());
        // The next time the kernel says that all is well.
        file.is_new_in(fs::File::open(folder.path()).unwrap());
        assert!(file.sync().is_err());
    }

    #[test]
    fn what_a_store_has_not_done_is_done_by_nobody_once_the_file_is_closed() {
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        // As a sync has it that was given up.
        let backing = Arc::clone(&file.open.backing);
        backing.behind.set_too_long();
        // Nor can its end be made when the file is closed.
        backing.poison(crate::backing::NO_NUMBER);
        drop(file);
        fs::write(data.path(), [7; 100]).unwrap();
        backing.catch_up(memory.home()).unwrap();
        assert_eq!(fs::read(data.path()).unwrap(), [7; 100]);
    }
}
