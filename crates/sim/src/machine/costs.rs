//! What steps cost on a simulated machine: the one place where times come from.

use serde::{Deserialize, Serialize};

/// Costs in ns of virtual time. Measured on one worker by `pagetide bench costs`, kept in
/// `costs.json` beside this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// An allocation or a free that the CPU's own cache serves.
    pub hit_ns: u64,
    /// The first write to a page after it was allocated.
    pub touch_ns: u64,
    /// A hold of a zone's lock, before its pages.
    pub hold_ns: u64,
    /// Each page that is moved in a hold.
    pub hold_page_ns: u64,
    /// Fetching the lock's lines from the CPU that held it last.
    pub line_transfer_ns: u64,
    /// Coming back to a lock after the wait was so long that the CPU was given away.
    pub wake_up_ns: u64,
    /// A zone's record that is looked at in vain.
    pub zone_ns: u64,
}

impl Costs {
    /// The measured ones.
    ///
    /// # Panics
    /// Where the committed file is no longer what [`Costs`] says; a test reads it.
    #[must_use]
    pub fn measured() -> Costs {
        serde_json::from_str(include_str!("costs.json")).expect("costs.json is checked by a test")
    }

    /// Each cost alone halved and doubled, with its name: how much a claim rests on it.
    #[must_use]
    pub fn variants(&self) -> Vec<(String, Costs)> {
        let serde_json::Value::Object(fields) = serde_json::json!(self) else {
            unreachable!("a struct is an object");
        };
        let changed = |name: &str, halves: u64| {
            let mut fields = fields.clone();
            let value = fields[name].as_u64().expect("costs are numbers");
            fields[name] = serde_json::json!((value * halves / 2).max(1));
            let costs = serde_json::from_value(serde_json::Value::Object(fields));
            costs.expect("the same fields")
        };
        let both = |name: &String| {
            [(1, "halved"), (4, "doubled")]
                .map(|(halves, what)| (format!("{name} {what}"), changed(name, halves)))
        };
        fields.keys().flat_map(both).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_file_is_read() {
        let costs = Costs::measured();
        assert!(costs.hold_ns > 0 && costs.hold_page_ns > 0);
        let variants = costs.variants();
        assert_eq!(variants.len(), 14);
        assert!(variants.iter().all(|(_, variant)| *variant != costs));
    }
}
