//! OpenMetrics text: names, values, and that others can read it.

use pagetide::{ByteSize, File, Group, Memory};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn text() -> (Memory, (Group, File), String) {
    // So that each page is missed by who asks for it.
    let builder = Memory::builder().readahead(ByteSize(0));
    let memory = builder.budget(ByteSize::mib(16)).build().unwrap();
    let web = memory.root().child("web \"1\"").unwrap();
    let web = web.max(ByteSize::mib(1)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![1; 2 << 20]).unwrap();
    let table = memory.open(file.path(), &web).unwrap();
    let mut bytes = vec![0; 2 << 20];
    table.read_at(&mut bytes, 0).unwrap();
    let text = memory.metrics();
    (memory, (web, table), text)
}

/// Sample lines: name with labels, value.
fn samples(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap()).collect()
}

#[test]
fn figures_are_those_of_the_library() {
    let (memory, (web, _table), text) = text();
    let samples = samples(&text);
    let label = r#"group="/web \"1\"""#;
    let number = |name: &str| samples[name].parse::<u64>().unwrap();
    let of_web = |name: &str| number(format!("pagetide_group_{name}{{{label}}}").as_str());
    assert_eq!(of_web("max_bytes"), 1 << 20);
    assert_eq!(of_web("usage_bytes"), web.usage().as_u64());
    assert_eq!(of_web("pgmajfault_total"), 512);
    assert_eq!(of_web("pgsteal_total"), web.stat().pgsteal);
    assert!(web.stat().pgsteal > 200);
    let stats = memory.stats();
    assert_eq!(number("pagetide_read_bytes_total"), stats.bytes_read);
    assert_eq!(number("pagetide_pgscan_total"), stats.pgscan);
    let file = format!("pagetide_group_memory_bytes{{{label},kind=\"file\"}}");
    assert_eq!(number(&file), web.stat().file);
}

#[test]
fn protections_of_all_there_is_are_figures_as_others() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let web = memory.root().child("web").unwrap().low(ByteSize(u64::MAX));
    let web = web.min(ByteSize(u64::MAX)).unwrap();
    let text = memory.metrics();
    let samples = samples(&text);
    for name in ["min", "low"] {
        let name = format!("pagetide_group_{name}_bytes{{group=\"/web\"}}");
        let found = samples[name.as_str()].parse::<f64>();
        assert_eq!(found, Ok(u64::MAX as f64));
    }
    assert_eq!(web.limit(), None);
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn every_count_of_the_library_has_a_metric() {
    let (memory, (web, _table), text) = text();
    let names: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE pagetide_"))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    for line in memory.stats().to_string().lines() {
        let name = line.split(' ').next().unwrap();
        let name = match name {
            "bytes_read" => "read_bytes",
            "bytes_written" => "written_bytes",
            "resident_pages" => "resident_bytes",
            other => other,
        };
        assert!(names.contains(name), "no metric of {name}");
    }
    for line in web.stat().to_string().lines() {
        let name = line.split(' ').next().unwrap();
        let kind = format!("kind=\"{name}\"");
        let forms = [format!("group_{name}"), format!("group_{name}_bytes")];
        let is_named = forms.iter().any(|form| names.contains(form.as_str()));
        assert!(is_named || text.contains(&kind), "no metric of {name}");
    }
    assert!(text.ends_with("# EOF\n"));
}

/// Prometheus's own linter, where it is installed (Debian: `prometheus`).
#[test]
fn promtool_finds_nothing_wrong() {
    let promtool = std::env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
    let run = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut run) = run else {
        println!("skipped: promtool: not installed (Debian package prometheus)");
        return;
    };
    // It reads the older text format, in which a counter's name in comments has its `_total`.
    let (_memory, _used, text) = text();
    let mut counters = BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(" counter") {
            counters.insert(name.rsplit(' ').next().unwrap());
        }
    }
    let older = text.lines().map(|line| {
        let mut words: Vec<String> = line.splitn(4, ' ').map(str::to_owned).collect();
        if words[0] == "#" && words.len() > 2 && counters.contains(words[2].as_str()) {
            words[2] += "_total";
        }
        words.join(" ") + "\n"
    });
    let older: String = older.collect();
    run.stdin
        .take()
        .unwrap()
        .write_all(older.as_bytes())
        .unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// The dashboard asks for nothing that is not told.
#[test]
fn the_dashboard_knows_only_metrics_that_are_there() {
    let dashboard = include_str!("../../../../docs/grafana/pagetide.json");
    let parsed: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() > 8);
    let (_memory, _used, text) = text();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut nr_names = 0;
    for part in dashboard.split("pagetide_").skip(1) {
        let name = part.split(|c| !is_name(c)).next().unwrap();
        let samples = [
            format!("\npagetide_{name} "),
            format!("\npagetide_{name}{{"),
        ];
        let is_told = samples.iter().any(|sample| text.contains(sample));
        assert!(is_told, "the dashboard asks for pagetide_{name}");
        nr_names += 1;
    }
    assert!(nr_names > 15, "{nr_names}");
}

#[test]
fn who_looks_keeps_no_name_from_a_new_group() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let others = (0..200).map(|at| memory.root().child(&format!("other{at}")).unwrap());
    let _others: Vec<_> = others.collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(!memory.metrics().is_empty());
            }
        });
        let begin = Instant::now();
        let mut refused = None;
        while refused.is_none() && begin.elapsed() < Duration::from_secs(1) {
            // Each is there long enough to be looked at.
            let pause = |_web: Group| std::thread::sleep(Duration::from_micros(100));
            refused = memory.root().child("web").map(pause).err();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
}
