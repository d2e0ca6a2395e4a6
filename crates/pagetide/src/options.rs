//! How a file is opened, in the words of `std::fs::OpenOptions`.

use crate::hooks::Given;
use crate::store::{Behind, DirectFile, Store, open_file, reopen};
use crate::{ByteSize, Error, File, Group, Hooks, Memory, Order};
use pagetide_core::units::PageKey;
use rustix::fs::OFlags;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Where the first page of a file begins at most: the end of the last page of the largest size is
/// an offset, too.
const MAX_BASE: u64 = (1 << 62) - 1;
const _: () = {
    let largest = Order::new(10).bytes() as u64;
    assert!(MAX_BASE + (largest << PageKey::PAGE_BITS) <= i64::MAX as u64);
};

/// How a file is opened: for reading, and as said here. As `std::fs::OpenOptions`, with the size of
/// its pages.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// use pagetide::{ByteSize, Memory, OpenOptions};
///
/// let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
/// let log = OpenOptions::new().write(true).create(true).open(&memory, &path, &memory.root())?;
/// log.write_at(b"hello", 0)?;
/// log.sync()?;
/// assert_eq!(std::fs::read(&path)?, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options open nothing by themselves"]
pub struct OpenOptions {
    write: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    order: Order,
    base: u64,
    hooks: Option<Given>,
    readahead: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// An existing file, for reading, with pages of 4 KiB.
    pub fn new() -> OpenOptions {
        OpenOptions {
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            order: Order::new(0),
            base: 0,
            hooks: None,
            readahead: None,
        }
    }

    /// For writing, too.
    pub fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// Creates the file where there is none; needs [`OpenOptions::write`].
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// Creates the file and fails where there is one; needs [`OpenOptions::write`].
    pub fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Cuts the file to no bytes, for all who have it open; needs [`OpenOptions::write`]. One that
    /// ends before its [`OpenOptions::base_offset`] gets as long as that.
    pub fn truncate(mut self, truncate: bool) -> OpenOptions {
        self.truncate = truncate;
        self
    }

    /// With pages of this order, 4 KiB to 4 MiB. A file that some handle writes is open in one size
    /// only.
    pub fn order(mut self, order: Order) -> OpenOptions {
        self.order = order;
        self
    }

    /// Where its first page begins: what is before, a header of its owner's perhaps, is neither
    /// read nor written, and offsets and lengths of the [`File`] are counted from here. Of a file
    /// that is shorter there is no byte; what is written then makes it longer, with zeros between.
    ///
    /// A file that some handle writes is open from one beginning only. Where it is no multiple of
    /// 4096, all writes go through the kernel's page cache; where it is none of what the device
    /// asks for, mostly 512 or 4096, all reads, too.
    pub fn base_offset(mut self, base: u64) -> OpenOptions {
        self.base = base;
        self
    }

    /// What is done with its pages on their way from and to the disk. Takes 64 KiB of working
    /// memory, or a page where one is larger, charged to the group that opens it first; pages are
    /// written 64 KiB at a time then, and by one thread at a time.
    ///
    /// Of a file that is open already, these must be the ones that it has; who gives none shares
    /// what the others see.
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> OpenOptions {
        self.hooks = Some(Given(hooks));
        self
    }

    /// Caches the pages of any store, as [`Memory::open_store`] does, with the order, the
    /// beginning, the hooks and the readahead of these options; all else is the store's to say.
    ///
    /// # Errors
    /// As [`Memory::open_store`]; with hooks, [`Error::OverLimit`] and [`Error::NoBlock`], too.
    ///
    /// # Panics
    /// Where the group is of another memory.
    pub fn open_store(
        &self,
        memory: &Memory,
        store: Box<dyn Store>,
        name: &str,
        group: &Group,
    ) -> Result<File, Error> {
        self.check_base(name)?;
        let store = match self.base {
            0 => store,
            base => Box::new(Behind { store, base }),
        };
        let with = (self.order, self.hooks.clone());
        let file = File::open_store(memory.home(), store, name.to_owned(), with, group)?;
        if let Some(most) = self.readahead {
            file.set_readahead(most);
        }
        Ok(file)
    }

    /// Reads a file that is open already, and writes it where these options say so: one without a
    /// name, perhaps. What it brings in is charged to `group`.
    ///
    /// As [`OpenOptions::open`] but that nothing is created: where the file has a name, its owner
    /// makes that durable. A descriptor that appends, or reads past the kernel's page cache by
    /// itself, is taken for another one of the same file, which stays as it is.
    ///
    /// # Errors
    /// [`Error::Open`], also of a descriptor that is not open for reading, and for writing where
    /// that is asked for; else as [`OpenOptions::open`].
    ///
    /// # Panics
    /// Where the group is of another memory.
    pub fn open_file(&self, memory: &Memory, file: fs::File, group: &Group) -> Result<File, Error> {
        let name = "an unnamed file";
        memory.home().check_process()?;
        self.check_base(name)?;
        let nr_closed = memory.home().nr_closed();
        let file = plain(file, self.write).and_then(|file| DirectFile::new(file, self.write));
        let file = file.map_err(|source| Error::Open {
            path: name.into(),
            source,
        })?;
        let file = self.open_direct(memory, (file, nr_closed), name.to_owned(), group)?;
        self.set_up(file)
    }

    /// Bytes that are read ahead of a sequential reader at most, in place of what
    /// [`Builder::readahead`](crate::Builder::readahead) says; 0 for none.
    pub fn readahead(mut self, most: ByteSize) -> OpenOptions {
        self.readahead = Some(most.as_u64());
        self
    }

    /// Opens a regular file; what it brings in is charged to `group`.
    ///
    /// A file that is open already shares its pages with the new handle. Of a file that it creates,
    /// the name becomes durable with the first [`File::sync`] before its last handle goes; its
    /// folder has to be readable for that.
    ///
    /// However many handles a file has, it takes one descriptor of the process, two where it may be
    /// written, and three where it was open for reading only before that; until the first sync of a
    /// file that it creates, one of the folder, too.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoMetadata`]; as [`File::set_len`] where it truncates; with hooks,
    /// [`Error::OverLimit`] and [`Error::NoBlock`], too.
    ///
    /// # Panics
    /// Where the group is of another memory.
    pub fn open(
        &self,
        memory: &Memory,
        path: impl AsRef<Path>,
        group: &Group,
    ) -> Result<File, Error> {
        memory.home().check_process()?;
        let path = path.as_ref();
        self.check_base(path)?;
        let failed = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        let nr_closed = memory.home().nr_closed();
        let (file, folder) = if self.write || self.create || self.create_new {
            let (file, folder) = self.find_or_create(path).map_err(failed)?;
            (DirectFile::new(file, self.write).map_err(failed)?, folder)
        } else {
            (DirectFile::open(path)?, None)
        };
        let name = path.display().to_string();
        let opened = self.open_direct(memory, (file, nr_closed), name, group);
        if let (Err(_), Some(folder)) = (&opened, &folder) {
            // Who tries again finds the file, and does not know that its name is new.
            let _synced = rustix::io::retry_on_intr(|| rustix::fs::fsync(folder));
        }
        let file = opened?;
        if let Some(folder) = folder {
            file.is_new_in(folder);
        }
        self.set_up(file)
    }

    /// [`File::open_direct`] as it is said here.
    fn open_direct(
        &self,
        memory: &Memory,
        (file, nr_closed): (DirectFile, u64),
        name: String,
        group: &Group,
    ) -> Result<File, Error> {
        let with = (self.order, self.hooks.clone());
        let file = (file.behind(self.base), nr_closed);
        File::open_direct(memory.home(), file, name, with, group)
    }

    /// What is said of a file that is open by now.
    fn set_up(&self, file: File) -> Result<File, Error> {
        if let Some(most) = self.readahead {
            file.set_readahead(most);
        }
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Whether offsets behind the beginning can be numbered.
    fn check_base(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        if self.base <= MAX_BASE {
            return Ok(());
        }
        let problem = format!("its pages begin at {}: at most {MAX_BASE}", self.base);
        Err(Error::Open {
            path: path.as_ref().to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidInput, problem),
        })
    }

    /// The file, and its folder where it was created.
    fn find_or_create(&self, path: &Path) -> io::Result<(fs::File, Option<fs::File>)> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(self.write);
        // Who creates for reading only is refused below.
        if !self.create_new && (self.write || !self.create) {
            match open_file(&options, 0, path) {
                Err(error) if self.create && error.kind() == io::ErrorKind::NotFound => {}
                opened => return Ok((opened?, None)),
            }
        }
        // First, so that no file is left whose name cannot be made durable.
        let folder = folder_of(path)?;
        match options.clone().create_new(true).open(path) {
            // The name is a link to what is not there, or somebody has just made the file.
            Err(error) if !self.create_new && error.kind() == io::ErrorKind::AlreadyExists => {
                let file = open_file(options.create(true), 0, path)?;
                Ok((file, Some(folder_of(&fs::canonicalize(path)?)?)))
            }
            opened => Ok((opened?, Some(folder))),
        }
    }
}

/// The folder that a file's name is in.
fn folder_of(path: &Path) -> io::Result<fs::File> {
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or(Path::new(".")))
}

/// A descriptor of a file that reads, and writes, where it is told to.
fn plain(file: fs::File, may_write: bool) -> io::Result<fs::File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    let access = flags & OFlags::RWMODE;
    let problem = match may_write {
        true if access != OFlags::RDWR => "it is not open for reading and writing",
        false if access == OFlags::WRONLY => "it is not open for reading",
        _ if flags.intersects(OFlags::APPEND | OFlags::DIRECT | OFlags::PATH) => {
            return reopen(&file, may_write, 0);
        }
        _ => return Ok(file),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}
