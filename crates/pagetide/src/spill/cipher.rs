//! Encryption of the spill file, by a key that is made with it and never leaves the process.
//!
//! AES-256 in XTS mode, a sector for each slot, as block devices for swap are encrypted: what a
//! disk keeps of the file tells nobody its bytes. It says that two slots have the same bytes only
//! where it was the same slot, and does not notice a change by somebody else.

use super::MAX_RUN;
use crate::page::Buf;
use crate::shared::locked;
use crate::{Error, Group, Order, PAGE_BYTES};
use aes::Aes256;
use aes::cipher::KeyInit;
use std::fmt;
use std::io;
use std::sync::Mutex;
use xts_mode::{Xts128, get_tweak_default};
use zeroize::Zeroizing;

/// Bytes of one of the two keys.
const KEY: usize = 32;
/// Room for a run.
const STAGING_ORDER: u8 = 6;
const _: () = assert!(1 << STAGING_ORDER == MAX_RUN);

/// The key, and where bytes are encrypted: pages that are written can be read meanwhile.
pub(super) struct Cipher {
    xts: Xts128<Aes256>,
    staging: Mutex<Buf>,
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AES-256-XTS")
    }
}

/// Random bytes of the system.
fn fill_random(mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match rustix::rand::getrandom(&mut *buf, rustix::rand::GetRandomFlags::empty()) {
            Ok(nr_bytes) => buf = &mut buf[nr_bytes..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Cipher {
    /// Makes a key. Its working memory, 256 KiB, is charged to a group.
    ///
    /// # Errors
    /// [`Error::Random`], [`Error::OverLimit`].
    pub(super) fn new(root: &Group) -> Result<Cipher, Error> {
        let mut keys = Zeroizing::new([0; 2 * KEY]);
        fill_random(&mut *keys).map_err(|source| Error::Random { source })?;
        let (data, tweak) = keys.split_at(KEY);
        let of = |key: &[u8]| Aes256::new_from_slice(key).expect("a key of 32 bytes");
        Ok(Cipher {
            xts: Xts128::new(of(data), of(tweak)),
            staging: Mutex::new(root.alloc(Order::new(STAGING_ORDER))?),
        })
    }

    /// Has `write` write units encrypted for the slots from `first` on. One at a time.
    pub(super) fn seal<R>(
        &self,
        first: u32,
        units: &[(u64, &[u8])],
        write: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let mut staging = locked(&self.staging);
        let area = &mut staging[..units.len() * PAGE_BYTES];
        for (copy, (_, bytes)) in area.chunks_exact_mut(PAGE_BYTES).zip(units) {
            copy.copy_from_slice(bytes);
        }
        self.xts
            .encrypt_area(area, PAGE_BYTES, first.into(), get_tweak_default);
        write(area)
    }

    /// Decrypts what slots from `first` on have.
    pub(super) fn open(&self, first: u32, area: &mut [u8]) {
        self.xts
            .decrypt_area(area, PAGE_BYTES, first.into(), get_tweak_default);
    }
}
