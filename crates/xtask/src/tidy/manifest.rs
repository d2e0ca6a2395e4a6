//! What `cargo run` means: exactly one binary.

use serde_json::Value;

use super::Violation;
use crate::error::Error;

const BINARY: &str = "pagetide";

/// The default members have one binary, and its name is `pagetide`.
///
/// # Errors
/// The metadata are not JSON.
pub(super) fn check_default_binary(metadata: &str) -> Result<Option<Violation>, Error> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let binaries = default_binaries(&metadata);
    if binaries == [BINARY] {
        return Ok(None);
    }
    let message = format!("`cargo run` has to mean `{BINARY}` alone, it may mean {binaries:?}");
    Ok(Some(Violation::new("Cargo.toml", 1, message)))
}

/// The names of the binaries of all default members.
fn default_binaries(metadata: &Value) -> Vec<&str> {
    let members = list(&metadata["workspace_default_members"]);
    let mut binaries = Vec::new();
    for package in list(&metadata["packages"]) {
        if !members.contains(&package["id"]) {
            continue;
        }
        for target in list(&package["targets"]) {
            if list(&target["kind"]).iter().any(|kind| kind == "bin") {
                binaries.extend(target["name"].as_str());
            }
        }
    }
    binaries
}

/// The values of a list; none if it is something else.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(members: &str, more: &str) -> String {
        format!(
            r#"{{"workspace_default_members": [{members}], "packages": [
                {{"id": "cli", "targets": [
                    {{"kind": ["bin"], "name": "pagetide"}} {more},
                    {{"kind": ["test"], "name": "it"}}]}},
                {{"id": "core", "targets": [{{"kind": ["lib"], "name": "pagetide_core"}}]}},
                {{"id": "xtask", "targets": [{{"kind": ["bin"], "name": "xtask"}}]}}]}}"#
        )
    }

    fn check(metadata: &str) -> Option<Violation> {
        check_default_binary(metadata).expect("the metadata are JSON")
    }

    #[test]
    fn one_binary_of_the_default_members_passes() {
        assert_eq!(check(&metadata(r#""cli""#, "")), None);
        assert_eq!(check(&metadata(r#""cli", "core""#, "")), None);
    }

    #[test]
    fn a_second_binary_is_found() {
        let second = r#", {"kind": ["bin"], "name": "other"}"#;
        let found = check(&metadata(r#""cli""#, second)).expect("two binaries");
        assert!(found.message.contains("\"other\""), "{found}");
        assert!(check(&metadata(r#""cli", "xtask""#, "")).is_some());
    }

    #[test]
    fn a_missing_binary_is_found() {
        assert!(check(&metadata(r#""core""#, "")).is_some());
        assert!(check("{}").is_some());
    }

    #[test]
    fn text_that_is_no_json_is_an_error() {
        assert!(check_default_binary("error").is_err());
    }
}
