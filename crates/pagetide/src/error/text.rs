//! What the messages of errors say of their numbers.

use pagetide_core::units::PageKey;

/// Who writes may write beyond the end, but not there.
pub(super) fn past_end_text(file: &str, page: u64, len: u64) -> String {
    match page >> PageKey::PAGE_BITS {
        0 => format!("page {page} is beyond the end of {file}, which has {len} bytes"),
        _ => format!(
            "page {page} of {file} is beyond the last one that there can be, 2^{} - 1",
            PageKey::PAGE_BITS
        ),
    }
}

/// What is more than the limit leaves beside pagetide's own fits beside nothing. Pages of files
/// that stay are pinned most often, unless all of them were too few.
pub(super) fn over_text(
    asked_pages: u64,
    (usage_pages, max_pages): (u64, u64),
    kernel_pages: u64,
    (reserved_pages, file_pages): (u64, u64),
) -> &'static str {
    let room = max_pages.saturating_sub(kernel_pages);
    let others = usage_pages.saturating_sub(file_pages);
    if asked_pages > room {
        "more than it may have at all"
    } else if asked_pages > room.saturating_sub(reserved_pages) {
        "more than what is reserved leaves"
    } else if file_pages > 0 && asked_pages > max_pages.saturating_sub(others) {
        "more than all pages of files would make room for"
    } else if file_pages > 0 {
        "none can be evicted (Memory::pins tells which are pinned, Group::protections what a min \
         keeps)"
    } else {
        "none can be evicted"
    }
}

/// They are the root's.
pub(super) fn own_text(kernel_pages: u64) -> String {
    match kernel_pages {
        0 => String::new(),
        _ => format!(", {kernel_pages} pagetide's own records"),
    }
}

/// Where more can be asked for later than is needed, that is why.
pub(super) fn arena_text(arena_bytes: u64, needed_bytes: u64) -> String {
    match arena_bytes > needed_bytes {
        true => format!(", with records of the {arena_bytes} bytes of Builder::arena_max"),
        false => String::new(),
    }
}

/// What failed may have been made up for since.
pub(super) fn writeback_text(file: &str, dirty_pages: u64, is_poisoned: bool) -> String {
    let failed = match dirty_pages {
        0 => format!("the store of {file} failed; none of the file's pages is dirty now"),
        _ => format!("cannot write {file} back: {dirty_pages} of its pages are dirty"),
    };
    match is_poisoned {
        true => format!("{failed}, and it takes no more writes until it is opened anew"),
        false => failed,
    }
}

/// Files that a message names.
const NAMED_FILES: usize = 4;

pub(super) fn awaited_text(awaited_pages: u64) -> String {
    match awaited_pages {
        0 => String::new(),
        _ => format!(", {awaited_pages} awaited by others"),
    }
}

/// `, pinned: a 6, b 2`, and what the rest sums up to.
pub(super) fn pinned_text(by_file: &[(String, u64)]) -> String {
    let (named, rest) = by_file.split_at(by_file.len().min(NAMED_FILES));
    let mut parts: Vec<String> = named
        .iter()
        .map(|(file, pages)| format!("{file} {pages}"))
        .collect();
    if !rest.is_empty() {
        let pages: u64 = rest.iter().map(|(_, pages)| pages).sum();
        parts.push(format!("{} other files {pages}", rest.len()));
    }
    match parts.is_empty() {
        true => String::new(),
        false => format!(", pinned: {}", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_is_told_what_stays() {
        let of =
            |asked, usage, reserved, files| over_text(asked, (usage, 110), 10, (reserved, files));
        assert_eq!(of(101, 110, 0, 50), "more than it may have at all");
        assert_eq!(of(61, 110, 40, 60), "more than what is reserved leaves");
        let too_few = "more than all pages of files would make room for";
        assert_eq!(of(51, 110, 0, 50), too_few);
        assert!(of(50, 110, 0, 50).starts_with("none can be evicted (Memory::pins"));
        assert_eq!(of(50, 110, 0, 0), "none can be evicted");
    }

    #[test]
    fn messages_name_a_few_files_and_sum_up_the_rest() {
        let of = |count: u64| -> Vec<(String, u64)> {
            (0..count)
                .map(|file| (format!("f{file}"), 9 - file))
                .collect()
        };
        assert_eq!(pinned_text(&of(0)), "");
        assert_eq!(pinned_text(&of(2)), ", pinned: f0 9, f1 8");
        assert_eq!(
            pinned_text(&of(6)),
            ", pinned: f0 9, f1 8, f2 7, f3 6, 2 other files 9"
        );
    }
}
