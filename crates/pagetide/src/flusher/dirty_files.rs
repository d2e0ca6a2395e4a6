//! Which of a memory's files have dirty pages: who writes some back looks at these alone, however
//! many are open.

use crate::backing::Backing;
use crate::shared::{Shared, locked};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

/// Files of which pages may be dirty, by the numbers of their mappings.
///
/// A file comes in behind its first dirty page. It goes off where somebody looks and finds that no
/// page is listed: its next one is the first again, and brings it back behind that look.
#[derive(Debug, Default)]
pub(crate) struct DirtyFiles {
    numbers: Mutex<BTreeSet<u32>>,
}

impl DirtyFiles {
    /// Adds the file in whose list a page is now, where none was.
    pub(crate) fn add(&self, number: u32) {
        locked(&self.numbers).insert(number);
    }

    /// All of them, with their mappings. Not kept open: to write pages of one may take long.
    ///
    /// Cost: a lock for each file that had a dirty page since the last look.
    pub(super) fn all(&self, shared: &Shared) -> Vec<(u32, Weak<Backing>)> {
        let backings = shared.backings();
        let mut files = Vec::new();
        locked(&self.numbers).retain(|number| {
            let file = backings.get(number);
            let dirty = file.filter(|file| file.last_dirty().is_some());
            files.extend(dirty.map(|file| (file.mapping, Arc::downgrade(file))));
            dirty.is_some()
        });
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, File, Memory};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn files(memory: &Memory, nr_files: usize) -> (tempfile::TempDir, Vec<File>) {
        let folder = tempfile::tempdir().unwrap();
        let open = |at: usize| {
            let path = folder.path().join(at.to_string());
            std::fs::write(&path, [0; 4096]).unwrap();
            memory.open_rw(&path, &memory.root()).unwrap()
        };
        let files = (0..nr_files).map(open).collect();
        (folder, files)
    }

    #[test]
    fn files_are_listed_from_their_first_dirty_page_on_until_they_have_none() {
        let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let memory = builder.build().unwrap();
        let shared = memory.home();
        let (_folder, files) = files(&memory, 3);
        let nr_listed = || shared.dirty_files.all(shared).len();
        assert_eq!(nr_listed(), 0);
        for _ in 0..2 {
            files[1].write_at(&[1], 0).unwrap();
            files[2].pin_mut(0).unwrap()[0] = 2;
            assert_eq!((nr_listed(), nr_listed()), (2, 2));
            files[1].flush_range(..).unwrap();
            assert_eq!((nr_listed(), nr_listed()), (1, 1));
            files[2].flush_range(..).unwrap();
            assert_eq!((nr_listed(), nr_listed()), (0, 0));
            assert!(
                locked(&shared.dirty_files.numbers).is_empty(),
                "looked at for nothing"
            );
        }
        files[0].write_at(&[1], 0).unwrap();
        drop(files);
        assert_eq!(nr_listed(), 0);
    }

    #[test]
    fn no_file_is_missed_whoever_looks_meanwhile() {
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let shared = memory.home();
        let (_folder, files) = files(&memory, 2);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(shared.dirty_files.all(shared));
                }
            });
            let writers = files.iter().zip(0..).map(|(file, at)| {
                let is_its = move |file: &&Arc<Backing>| file.name.ends_with(&format!("/{at}"));
                let backing = shared.backings().values().find(is_its).cloned().unwrap();
                scope.spawn(move || {
                    let is_its = |&(mapping, _): &(u32, _)| mapping == backing.mapping;
                    for _ in 0..2000 {
                        file.write_at(&[1], 0).unwrap();
                        let listed = shared.dirty_files.all(shared);
                        let is_missed = !listed.iter().any(is_its);
                        assert!(!is_missed || backing.nr_dirty() == 0);
                        file.flush_range(..).unwrap();
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
    }
}
