//! What is of no use where it is dropped as soon as it is made: the compiler warns of that.

/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use pagetide::{ByteSize, Memory};
/// let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
/// memory.root().reserve(ByteSize::mib(1)).unwrap();
/// ```
struct Reservation;

/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use pagetide::{ByteSize, Memory};
/// let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
/// memory.root().pin_permit(1).unwrap();
/// ```
struct PinPermit;

/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use pagetide::{ByteSize, Memory, Order};
/// let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
/// memory.root().alloc(Order::new(0)).unwrap();
/// ```
struct Buf;

/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use pagetide::{ByteSize, Memory};
/// let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
/// memory.watch("/run/app.sock").unwrap();
/// ```
#[cfg(feature = "watch")]
struct Watch;
