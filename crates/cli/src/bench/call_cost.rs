//! Where the instructions of a function go: callgrind counts them for each address, addr2line says
//! which functions were inlined there.

use super::counted::output_of;
use crate::failure::Failure;
use crate::scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A part of the cost, and what the functions that belong to it have in their names.
pub(super) type Step<'a> = (&'static str, &'a [&'static str]);

/// What each step took.
pub(super) type Costs = Vec<(&'static str, f64)>;

/// A call: from where, of what, and what it cost with all that it called.
#[derive(Debug)]
struct Call {
    from: u64,
    callee: String,
    cost: u64,
}

/// What one function did.
#[derive(Debug, Default)]
struct Function {
    /// Instructions by address.
    own: Vec<(u64, u64)>,
    calls: Vec<Call>,
}

impl Function {
    fn cost(&self) -> u64 {
        let own = self.own.iter().map(|&(_, cost)| cost);
        own.chain(self.calls.iter().map(|call| call.cost)).sum()
    }
}

/// What a run did.
#[derive(Debug, Default)]
pub(super) struct Profile {
    functions: BTreeMap<String, Function>,
    /// The functions that are inlined at an address, the innermost first: each its file and name.
    inlined: BTreeMap<u64, Vec<String>>,
}

/// Runs this program with these arguments: where its instructions went, and its output. `None`
/// where there is no valgrind or no addr2line.
pub(super) fn callgrind(args: &[&str]) -> Result<Option<(Profile, String)>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::of("cannot count instructions", error);
    let out = scratch::empty().map_err(|error| failed(&error))?;
    let path = scratch::path_of(&out);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--dump-instr=yes"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", path.display()))
        .arg(&program)
        .args(args);
    let Some(done) = output_of(&mut command)? else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut profile = Profile {
        functions: functions(&text, &program.display().to_string()),
        ..Profile::default()
    };
    let Some(inlined) = inlined(&program, &profile.functions) else {
        return Ok(None);
    };
    profile.inlined = inlined;
    Ok(Some((
        profile,
        String::from_utf8_lossy(&done.stdout).into_owned(),
    )))
}

/// Reads what callgrind wrote: `fn=` begins a function, `calls=` says that the next line is one of
/// a call of `cfn=`, other lines are `address line cost`. Addresses outside `program`, whose name
/// an `ob=` before says, are 0.
fn functions(text: &str, program: &str) -> BTreeMap<String, Function> {
    let mut functions: BTreeMap<String, Function> = BTreeMap::new();
    let (mut name, mut callee, mut is_call) = (String::new(), String::new(), false);
    let mut is_ours = false;
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("fn=") {
            function.clone_into(&mut name);
        } else if let Some(function) = line.strip_prefix("cfn=") {
            function.clone_into(&mut callee);
        } else if let Some(object) = line.strip_prefix("ob=") {
            is_ours = object == program;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(position) = line.strip_prefix("0x") {
            let mut fields = position.split_whitespace();
            let address = fields.next().map(|field| u64::from_str_radix(field, 16));
            let cost = fields.nth(1).map(str::parse);
            let (Some(Ok(from)), Some(Ok(cost))) = (address, cost) else {
                continue;
            };
            let from = if is_ours { from } else { 0 };
            let function = functions.entry(name.clone()).or_default();
            if std::mem::take(&mut is_call) {
                function.calls.push(Call {
                    from,
                    callee: callee.clone(),
                    cost,
                });
            } else {
                function.own.push((from, cost));
            }
        }
    }
    functions
}

/// Asks which functions are inlined where. `None` where there is no addr2line.
fn inlined(
    program: &Path,
    functions: &BTreeMap<String, Function>,
) -> Option<BTreeMap<u64, Vec<String>>> {
    let addresses: BTreeSet<u64> = functions
        .values()
        .flat_map(|function| {
            let own = function.own.iter().map(|&(address, _)| address);
            own.chain(function.calls.iter().map(|call| call.from))
        })
        .collect();
    let mut questions = tempfile::tempfile().ok()?;
    for address in &addresses {
        writeln!(questions, "{address:#x}").ok()?;
    }
    std::io::Seek::rewind(&mut questions).ok()?;
    let done = Command::new("addr2line")
        .args(["--addresses", "--functions", "--inlines", "--demangle"])
        .arg("--exe")
        .arg(program)
        .stdin(Stdio::from(questions))
        .output();
    let done = done.ok().filter(|done| done.status.success())?;
    Some(answers(&String::from_utf8_lossy(&done.stdout)))
}

/// After each address comes a line with a function and one with a place, for each function.
fn answers(text: &str) -> BTreeMap<u64, Vec<String>> {
    let mut inlined: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let (mut names, mut is_name) = (None, true);
    for line in text.lines() {
        if let Some(address) = line.strip_prefix("0x") {
            let address = u64::from_str_radix(address, 16).unwrap_or(0);
            names = Some(inlined.entry(address).or_default());
            is_name = true;
            continue;
        }
        if let Some(names) = names.as_mut().filter(|_| is_name) {
            names.push(line.to_owned());
        } else if let Some(name) = names.as_mut().and_then(|names| names.last_mut()) {
            // `file:line`, or `file:line (discriminator 3)`.
            let file = line.split(':').next().unwrap_or("");
            *name = format!("{file}:{name}");
        }
        is_name = !is_name;
    }
    inlined
}

impl Profile {
    /// The cost of a function, and of it what each step took, with what is of none as `rest`.
    ///
    /// What a step calls counts for it. What a function costs that is called from several places
    /// is shared out in proportion to the cost of the calls.
    pub(super) fn steps(
        &self,
        function: &str,
        steps: &[Step<'_>],
    ) -> Result<(f64, Costs), Failure> {
        let found = self
            .functions
            .keys()
            .find(|name| is_of(name, function))
            .ok_or_else(|| Failure::Run(format!("callgrind saw no call of {function}")))?;
        let total = self.functions[found].cost() as f64;
        let parts = self.parts(found, steps, &mut BTreeMap::new());
        let names = steps.iter().map(|&(name, _)| name).chain(["rest"]);
        let costs = parts.iter().map(|part| part * total);
        Ok((total, names.zip(costs).collect()))
    }

    /// The part of a function's cost that each step took, and the rest. What calls itself is of the
    /// rest.
    fn parts<'a>(
        &'a self,
        name: &'a str,
        steps: &[Step<'_>],
        known: &mut BTreeMap<&'a str, Vec<f64>>,
    ) -> Vec<f64> {
        if let Some(parts) = known.get(name) {
            return parts.clone();
        }
        let rest = steps.len();
        let mut parts = vec![0.0; rest + 1];
        parts[rest] = 1.0;
        // While it is looked into, and for good where nothing is known of it.
        known.insert(name, parts.clone());
        let Some(function) = self.functions.get(name) else {
            return parts;
        };
        parts[rest] = 0.0;
        let whole = function.cost().max(1) as f64;
        for &(address, cost) in &function.own {
            let step = self.step_at(address, steps).unwrap_or(rest);
            parts[step] += cost as f64 / whole;
        }
        for call in &function.calls {
            let part = call.cost as f64 / whole;
            let step = step_of(&call.callee, steps).or_else(|| self.step_at(call.from, steps));
            if let Some(step) = step {
                parts[step] += part;
                continue;
            }
            let of_callee = self.parts(&call.callee, steps, known);
            for (sum, of_callee) in parts.iter_mut().zip(of_callee) {
                *sum += part * of_callee;
            }
        }
        known.insert(name, parts.clone());
        parts
    }

    fn step_at(&self, address: u64, steps: &[Step<'_>]) -> Option<usize> {
        let names = self.inlined.get(&address)?;
        names.iter().find_map(|name| step_of(name, steps))
    }
}

/// Whether a function as valgrind or addr2line names it is this one: path, type and name.
fn is_of(name: &str, function: &str) -> bool {
    let name = name.replace(['<', '>'], "");
    name.split("::h")
        .next()
        .is_some_and(|name| name.ends_with(function))
}

fn step_of(name: &str, steps: &[Step<'_>]) -> Option<usize> {
    let name = name.replace(['<', '>'], "");
    steps
        .iter()
        .position(|(_, parts)| parts.iter().any(|part| name.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_go_to_the_steps_that_they_are_of() {
        let text = "ob=prog\nfn=a::B>::top\n0x10 1 5\ncfn=a::free\ncalls=2 0x30 1\n0x11 1 20\n\
                    cfn=a::both\ncalls=1 0x40 1\n0x12 1 6\n\nfn=a::other\n0x50 1 1\n\
                    cfn=a::both\ncalls=1 0x40 1\n0x51 1 6\n\nfn=a::both\n0x40 1 8\n0x41 1 4\n\
                    ob=libc\nfn=memset\n0x40 1 9\n";
        let functions = functions(text, "prog");
        let inlined = answers(
            "0x0000000000000040\nput\n/src/shadow.rs:7\ntop\n/src/b.rs:1 (discriminator 2)\n\
             0x0000000000000041\ntop\n/src/b.rs:2\n",
        );
        assert_eq!(inlined[&0x40], ["/src/shadow.rs:put", "/src/b.rs:top"]);
        assert_eq!(functions["memset"].own, [(0, 9)]);
        let profile = Profile { functions, inlined };
        let steps: [Step<'_>; 2] = [("shadow", &["shadow.rs"]), ("free", &["a::free"])];
        let (total, costs) = profile.steps("B::top", &steps).unwrap();
        // Half of what `both` did was for `top`.
        assert_eq!(total, 31.0);
        assert_eq!(costs, [("shadow", 4.0), ("free", 20.0), ("rest", 7.0)]);
        assert!(profile.steps("nobody", &steps).is_err());
    }
}
