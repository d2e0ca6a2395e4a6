//! Named cases of files of the system, and a store for the tests of others.

use super::*;

/// An empty store that can be written: what becomes of bytes and where they are to be, its
/// function decides.
pub(crate) struct Takes<F>(pub(crate) F);

impl<F> Store for Takes<F>
where
    F: Fn(&[u8], u64) -> io::Result<usize> + Send + Sync,
{
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        (self.0)(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_may_not_keep_the_access_time_reads_past_the_page_cache_all_the_same() {
    let file = tempfile::tempfile().unwrap();
    let mut asked = std::cell::RefCell::new(Vec::new());
    let opened = direct(|flags| {
        asked.borrow_mut().push(flags);
        match flags & libc::O_NOATIME {
            0 => file.try_clone(),
            _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
    });
    assert!(opened.is_ok());
    let direct_only = libc::O_DIRECT;
    assert_eq!(
        *asked.get_mut(),
        [direct_only | libc::O_NOATIME, direct_only]
    );
    // What else is refused is refused once.
    let refused = direct(|_| Err(io::Error::from_raw_os_error(libc::EINVAL)));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn an_end_within_a_page_is_one_write_from_where_the_page_begins() {
    let file = DirectFile::new(tempfile::tempfile().unwrap(), true).unwrap();
    let bytes = vec![7; 4 * crate::PAGE_BYTES];
    let aligned = &bytes[bytes.as_ptr().align_offset(crate::PAGE_BYTES)..];
    // As of a log that gets a record more at each commit. Two units of most devices and a part.
    let end = 1124;
    assert_eq!(file.write_at(&aligned[..end], 0).unwrap(), end);
    assert_eq!(file.nr_buffered_writes(), 1);
    let long = crate::PAGE_BYTES + end;
    let first = file.write_at(&aligned[..long], 0).unwrap();
    let is_direct = file.is_direct();
    assert_eq!(first, if is_direct { crate::PAGE_BYTES } else { long });
    let rest = &aligned[first..long];
    assert_eq!(file.write_at(rest, first as u64).unwrap(), rest.len());
    assert_eq!(file.len().unwrap(), long as u64);
}

#[test]
fn a_read_ends_with_the_unit_of_its_last_byte() {
    let mut file = DirectFile::new(tempfile::tempfile().unwrap(), true).unwrap();
    for (align, offset, wanted, asked) in [
        (512, 0, 4096, 4096),
        (512, 65536, 589, 1024),
        (4096, 65536, 589, 4096),
        (512, 512, 512, 512),
        // Not to be read past the kernel's page cache.
        (512, 100, 12, 412),
        (1, 100, 12, 12),
    ] {
        file.direct = Some(Direct {
            file: tempfile::tempfile().unwrap(),
            align,
        });
        assert_eq!(file.asked(offset, wanted), asked, "{offset}, {wanted}");
    }
    file.direct = None;
    assert_eq!(file.asked(65536, 589), 589);
}
