//! What can go wrong, with the thing named.

mod text;

use crate::Policy;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use text::{
    arena_text, awaited_text, over_text, own_text, past_end_text, pinned_text, writeback_text,
};

/// An error of pagetide. Nothing is lost and nothing stays charged by a failed call.
///
/// It names a group by its [`path`](crate::Group::path).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The budget is smaller than its own records and a few pages.
    #[error(
        "a budget of {budget_bytes} bytes is too small: at least {needed_bytes} are needed, \
         in whole pages of 4096 bytes{}",
        arena_text(*arena_bytes, *needed_bytes)
    )]
    BudgetTooSmall {
        /// The budget asked for, in whole pages.
        budget_bytes: u64,
        /// The least that works on this machine, with this arena.
        needed_bytes: u64,
        /// How far the budget could be raised: all of that has records.
        /// See [`Builder::arena_max`](crate::Builder::arena_max).
        arena_bytes: u64,
    },
    /// The budget, or what it was to be raised to later
    /// ([`Builder::arena_max`](crate::Builder::arena_max)), exceeds what frame numbers can count;
    /// or a new budget what the arena was made for.
    #[error("a budget of {budget_bytes} bytes is too large: at most {max_bytes}")]
    BudgetTooLarge {
        /// What was asked for, in whole pages.
        budget_bytes: u64,
        /// The most that works.
        max_bytes: u64,
    },
    /// Nodes, CPUs and sizes of the allocator that do not add up.
    #[error("the allocator's configuration does not add up: {problem}")]
    Config {
        /// What is wrong.
        problem: String,
    },
    /// The kernel refused the arena's address space.
    #[error("cannot reserve {bytes} bytes of address space for the arena")]
    Arena {
        /// Bytes asked for.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The system's pages are none of 4096 bytes: what is less than one cannot go back to it.
    #[error("pagetide needs a system with pages of 4096 bytes: here they have {page_bytes}")]
    PageSize {
        /// What they have.
        page_bytes: usize,
    },
    /// Less came back than was asked for.
    #[error("group {group}: {reclaimed_bytes} of {asked_bytes} bytes reclaimed")]
    ReclaimedLess {
        /// The group.
        group: String,
        /// What came back.
        reclaimed_bytes: u64,
        /// What was asked for.
        asked_bytes: u64,
    },
    /// The group had pages already, which are replaced in another way.
    #[error("group {group} has had pages of files or anon pages, which are replaced by {policy}")]
    PolicyInUse {
        /// The group.
        group: String,
        /// Its policy.
        policy: Policy,
    },
    /// A thread of the memory was not started.
    #[error("cannot start the housekeeping thread")]
    Thread {
        /// What the OS said.
        source: io::Error,
    },
    /// A socket to look at the memory through was not opened.
    #[error("cannot open the socket {path}", path = path.display())]
    Watch {
        /// Where it was to be.
        path: PathBuf,
        /// What the OS said.
        source: io::Error,
    },
    /// A node or CPU that is not there.
    #[error("group {group}: no {what} {number}, but {count}")]
    NoPlace {
        /// The group.
        group: String,
        /// Node or CPU.
        what: &'static str,
        /// Its number.
        number: u32,
        /// How many there are.
        count: u32,
    },
    /// A thread was not bound to its group's CPUs.
    #[error("cannot bind this thread to the CPUs of group {group}")]
    Bind {
        /// The group.
        group: String,
        /// What the OS said.
        source: io::Error,
    },
    /// The allocator or the budget has no room for records of pagetide's own.
    #[error("no memory for records of {what}")]
    NoMetadata {
        /// What the records are for.
        what: &'static str,
    },
    /// A group's `max` is met and nothing in it can be evicted, or more is asked for than could be.
    ///
    /// What it has is counted a moment later. How much of it is pinned no counter says:
    /// [`Memory::pins`](crate::Memory::pins) looks. Nor how much is kept by the `min` of groups
    /// below it from others: [`Group::set_min`](crate::Group::set_min).
    #[error(
        "group {group} over max: {asked_pages} more than {usage_pages} of {max_pages} pages, \
         {what}: {anon_pages} are anon or working memory, {reserved_pages} reserved, {file_pages} \
         of files, {dirty_pages} of these dirty{own}",
        what = over_text(
            *asked_pages,
            (*usage_pages, *max_pages),
            *kernel_pages,
            (*reserved_pages, *file_pages)
        ),
        own = own_text(*kernel_pages)
    )]
    OverLimit {
        /// The group whose limit it is.
        group: String,
        /// Pages asked for.
        asked_pages: u64,
        /// Its usage in pages.
        usage_pages: u64,
        /// Its limit in pages.
        max_pages: u64,
        /// Of its usage, working memory and anon pages: see
        /// [`GroupStat::anon`](crate::GroupStat::anon).
        anon_pages: u64,
        /// Of its usage, reserved for the program's own heap: bytes, rounded up to a page.
        reserved_pages: u64,
        /// Of its usage, pages of files.
        file_pages: u64,
        /// Of them, pages that have to be written first.
        dirty_pages: u64,
        /// Of its usage, pagetide's own records: see
        /// [`GroupStat::kernel`](crate::GroupStat::kernel).
        kernel_pages: u64,
    },
    /// The budget is used up, and all that could be evicted came in less than
    /// [`Builder::min_ttl`](crate::Builder::min_ttl) ago.
    #[error(
        "no page for group {group}: the budget is used up, and all pages that could go came in \
         less than {min_ttl:?} ago"
    )]
    Thrashing {
        /// The group that asked.
        group: String,
        /// How long pages stay.
        min_ttl: Duration,
    },
    /// A group's `max` is met, and what is left in it are anon pages that cannot be swapped out.
    /// They are in memory, with all that was written to them.
    #[error(
        "group {group} over max: {asked_pages} more than {usage_pages} of {max_pages} pages, and \
         its anon pages cannot be swapped out: {used_bytes} of {max_bytes} bytes of the spill file \
         in use"
    )]
    SwapOut {
        /// The group whose limit it is.
        group: String,
        /// Pages asked for.
        asked_pages: u64,
        /// Its usage in pages.
        usage_pages: u64,
        /// Its limit in pages.
        max_pages: u64,
        /// Bytes of the spill file in use, by all groups.
        used_bytes: u64,
        /// As many may be.
        max_bytes: u64,
        /// Why the last one was not written: a disk that is full or fails.
        source: io::Error,
    },
    /// No block of this order, though enough memory is free or can be reclaimed: in each aligned
    /// one that the group may have is a page that is pinned or protected, or working memory.
    #[error(
        "no block of order {order} for group {group}: \
         every one holds pinned, protected or working memory"
    )]
    NoBlock {
        /// The order asked for.
        order: u8,
        /// The group that asked.
        group: String,
    },
    /// The limit is set, but pages in use keep the group over it, or ones that the `min` of a group
    /// below it protects.
    #[error(
        "group {group} is still {over_pages} pages over its new max: of {usage_pages} in use, \
         {pinned_pages} are pinned, {dirty_pages} dirty, {anon_pages} anon or working memory, \
         {reserved_pages} reserved{}",
        own_text(*kernel_pages)
    )]
    StillOver {
        /// The group.
        group: String,
        /// Pages over the limit.
        over_pages: u64,
        /// Pages charged.
        usage_pages: u64,
        /// Of them, pages that are pinned.
        pinned_pages: u64,
        /// Of them, pages that have to be written first.
        dirty_pages: u64,
        /// Of them, working memory and anon pages: see
        /// [`GroupStat::anon`](crate::GroupStat::anon).
        anon_pages: u64,
        /// Of them, reserved for the program's own heap: bytes, rounded up to a page.
        reserved_pages: u64,
        /// Of them, pagetide's own records: see [`GroupStat::kernel`](crate::GroupStat::kernel).
        kernel_pages: u64,
    },
    /// A `min` that the group's `max` would never let it reach.
    #[error("group {group}: min of {min_pages} pages is over max of {max_pages}")]
    MinOverMax {
        /// The group.
        group: String,
        /// The `min` in pages.
        min_pages: u64,
        /// The `max` in pages.
        max_pages: u64,
    },
    /// A group's name is empty, too long, has a slash, or is taken by a sibling.
    #[error("group name '{}' {problem}", name.escape_debug())]
    GroupName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The tree is too deep for another child.
    #[error("group {group} has no room for children: the tree is 16 levels deep")]
    TooDeep {
        /// The parent.
        group: String,
    },
    /// A pressure trigger that is none, or whose times are out of their limits.
    #[error("pressure trigger '{spec}' {problem}")]
    BadTrigger {
        /// The trigger as it was given.
        spec: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The spill file for anon pages cannot be made.
    #[error("cannot make a spill file in {folder}", folder = folder.display())]
    Spill {
        /// Where: see [`Builder::spill`](crate::Builder::spill).
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system gave no random bytes.
    #[error("cannot make a key for the spill file")]
    Random {
        /// What it said.
        source: io::Error,
    },
    /// Every page of the spill file may be needed already by the anon pages that there are.
    #[error("no room for more anon pages: the spill file has {max_bytes} bytes")]
    SpillFull {
        /// What it may have: see [`Builder::spill_max`](crate::Builder::spill_max).
        max_bytes: u64,
    },
    /// More anon pages than can be numbered.
    #[error("{nr_pages} anon pages are too many: at most {max_pages}")]
    AnonTooLarge {
        /// Pages asked for.
        nr_pages: u64,
        /// The most of this size.
        max_pages: u64,
    },
    /// A file cannot be opened.
    #[error("cannot open {path}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading a page failed.
    #[error("cannot read page {page} of {file}")]
    Io {
        /// The file.
        file: String,
        /// The page's number.
        page: u64,
        /// Why.
        source: io::Error,
    },
    /// A write through a handle that was opened for reading, or to a store that takes none.
    #[error("{file} is open for reading only")]
    ReadOnly {
        /// The file.
        file: String,
    },
    /// Dirty pages of a file could not be written or made durable.
    #[error("{}", writeback_text(file, *dirty_pages, *is_poisoned))]
    WritebackFailed {
        /// The file.
        file: String,
        /// Its dirty pages, which are kept.
        dirty_pages: u64,
        /// Whether the store may have lost what it took before, as where `fdatasync` failed: then
        /// the file takes no more writes, and no call of it is worth another try, until all its
        /// handles are closed and it is opened anew. Else one is.
        is_poisoned: bool,
        /// Why.
        source: io::Error,
    },
    /// A page that somebody holds for too long, also where that is the caller itself: a
    /// [`Page`](crate::Page) may be dropped by any thread, so that nobody knows who could.
    /// [`Memory::pins`](crate::Memory::pins) names the line that made it, with debug assertions.
    #[error("page {page} of {file} stays pinned, or somebody changes it")]
    PageBusy {
        /// The file.
        file: String,
        /// The page's number.
        page: u64,
    },
    /// Pages that may not be written before the engine's log is durable, which it is not.
    #[error(
        "cannot write {file} back: {dirty_pages} pages are dirty, some wait for the log, which is \
         durable up to {durable}"
    )]
    LogBehind {
        /// The file.
        file: String,
        /// Its dirty pages, which are kept.
        dirty_pages: u64,
        /// Up to where the log was durable then: it may be further by now.
        durable: u64,
        /// Why it is not further.
        source: io::Error,
    },
    /// So much of a group is dirty, with the groups below it, that writers have to write, and no
    /// page of this file may be written before the engine's log is.
    #[error("group {group} over its limit of dirty pages: those of {file} wait for the log")]
    DirtyLimit {
        /// The group: the writer's or the page's, or the first one above it of which that is so.
        group: String,
        /// The file.
        file: String,
        /// Why the log is no further.
        source: io::Error,
    },
    /// A page whose bytes are not written yet and would be lost.
    #[error("page {page} of {file} is dirty")]
    PageDirty {
        /// The file.
        file: String,
        /// The page's number.
        page: u64,
    },
    /// This process was forked from the one that built the memory, and cannot use it: no call that
    /// can fail does anything here, what is dropped changes nothing, and a view of a page or buffer
    /// faults when it is touched, because a child has no copy of that memory. Calls that cannot
    /// fail are not for the child either: a thread that it has not may hold their locks.
    ///
    /// The child may build a memory of its own: by [`Builder::without_thread`] where a thread of
    /// the parent may have been starting or ending as it forked, because the standard library has a
    /// lock for that, without which no thread starts in the child.
    ///
    /// [`Builder::without_thread`]: crate::Builder::without_thread
    #[error("this process was forked from the one that built the memory")]
    Forked,
    /// A page beyond the end of the file, or beyond the last one that a file can have.
    #[error("{}", past_end_text(file, *page, *len))]
    PastEnd {
        /// The file.
        file: String,
        /// The page's number.
        page: u64,
        /// The file's length in bytes.
        len: u64,
    },
    /// One page is pinned too often.
    #[error("page {page} of {file} is pinned too often")]
    TooManyPins {
        /// The file.
        file: String,
        /// The page's number.
        page: u64,
    },
    /// The budget was asked for as a share that is none.
    #[error("a budget of {fraction} of the memory: a share is above 0 and at most 1")]
    BudgetFraction {
        /// The share asked for.
        fraction: f64,
    },
    /// The memory limit of the cgroup that this process lives in cannot be told.
    #[error("cannot tell this process's cgroup limit, name a budget: {path}: {problem}",
        path = path.display())]
    CgroupLayout {
        /// The file or folder that is not as expected.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A global memory is to be installed where there is one.
    #[error("this process has a global memory already")]
    GlobalExists,
    /// The pin budget of a group has no room for more pins.
    #[error(
        "group {group} over its pin limit: {asked_pages} more than {pinned_pages} of {max_pages} \
         pages{}{}", awaited_text(*awaited_pages), pinned_text(by_file)
    )]
    PinLimit {
        /// The group whose limit it is.
        group: String,
        /// Pages asked for.
        asked_pages: u64,
        /// Pages that others wait for, and for whom what is left is kept.
        awaited_pages: u64,
        /// Pages that count: pinned, or promised by a permit.
        pinned_pages: u64,
        /// The limit in pages.
        max_pages: u64,
        /// Pages charged to the group that are pinned by anybody or being read, ahead too, by file,
        /// most first.
        by_file: Vec<(String, u64)>,
    },
    /// A permit has fewer pages left than a pin takes.
    #[error(
        "the permit of group {group} has {left_pages} of {permit_pages} pages left, and a pin \
         takes {asked_pages}"
    )]
    PermitSpent {
        /// The permit's group.
        group: String,
        /// Pages that the pin takes.
        asked_pages: u64,
        /// Pages that the permit has left.
        left_pages: u64,
        /// Pages of the permit.
        permit_pages: u64,
    },
    /// A wait that only those who wait could end.
    #[error(
        "group {group}: waiting for {what} would deadlock: {asked_pages} more than the \
         {held_pages} of {max_pages} pages that those who wait hold{}",
        pinned_text(by_file)
    )]
    WouldDeadlock {
        /// The group whose limit it is.
        group: String,
        /// Pins or memory.
        what: &'static str,
        /// Pages asked for.
        asked_pages: u64,
        /// Pages held by those who wait, this one included.
        held_pages: u64,
        /// The limit in pages.
        max_pages: u64,
        /// Pages charged to the group that are pinned by anybody or being read, ahead too, by file,
        /// most first.
        by_file: Vec<(String, u64)>,
    },
    /// A wait that had not ended by its deadline.
    #[error(
        "group {group}: no {what} by the deadline: {asked_pages} more than {usage_pages} of \
         {max_pages} pages{}",
        pinned_text(by_file)
    )]
    TimedOut {
        /// The group whose limit was met.
        group: String,
        /// Pins or memory.
        what: &'static str,
        /// Pages asked for.
        asked_pages: u64,
        /// Pages that counted at the end.
        usage_pages: u64,
        /// The limit in pages.
        max_pages: u64,
        /// Pages charged to the group that are pinned by anybody or being read, ahead too, by file,
        /// most first.
        by_file: Vec<(String, u64)>,
    },
}
