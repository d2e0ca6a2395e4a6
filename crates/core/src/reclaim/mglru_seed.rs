//! The multi-gen LRU as its first patch says: where it differs from [`super::mglru`].
//!
//! Source: multi-gen LRU, Zhao 2022 ("minimal implementation"). Pages that are read through
//! descriptors enter the oldest generation, where Linux since 6.7 takes the second oldest while
//! there are more than two; so the oldest never drains while reads go on, `min_seq` stands, and
//! what was protected once stays. A refault restores a saturated count only, which eviction
//! protects anyway; Linux since 6.7 restores one less, too.

use super::mglru::{Form, MAX_ACCESSES, Mglru};

/// What the first patch does.
const FORM: Form = Form {
    enters_oldest: true,
    restores_from: MAX_ACCESSES,
};

/// A lruvec without pages.
pub(super) const fn new() -> Mglru {
    Mglru::new(FORM)
}
