//! `browser`: the demo's report in a real browser, light and dark, wide and as on a phone.
//!
//! A probe is put into a copy of the page (the page itself has no script): it writes what it finds
//! into the document, which the browser then prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::workspace::{self, Workspace};

/// Names under which Chromium is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Plots of the report at least.
const MIN_PLOTS: u64 = 10;
/// Name of a look, width, height, whether it is dark.
const LOOKS: [(&str, u32, u32, bool); 4] = [
    ("light", 1280, 3600, false),
    ("dark", 1280, 3600, true),
    ("phone", 390, 8000, false),
    ("phone-dark", 390, 8000, true),
];

const PROBE: &str = r#"<script>
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("svg.chart")].map(svg => {
    const box = svg.getBoundingClientRect();
    return {wide: box.width, high: box.height, drawn: svg.querySelectorAll("polyline,rect").length,
            label: svg.getAttribute("aria-label") || ""};
  });
  const found = {plots: boxes, scroll: document.documentElement.scrollWidth, width: innerWidth,
                 tables: document.querySelectorAll("table").length,
                 back: getComputedStyle(document.body).backgroundColor};
  const text = JSON.stringify(found);
  document.body.insertAdjacentHTML("beforeend", "<pre id=probe>" + text + "</pre>");
});
</script>"#;

/// Makes a report by a short demo and looks at it.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Error> {
    let Some(browser) = find() else {
        return Err(Error::NoBrowser);
    };
    let folder = workspace.target_dir("browser");
    fs::create_dir_all(&folder).map_err(|source| write_error(&folder, source))?;
    let report = folder.join("demo.html");
    let mut demo = workspace.cargo();
    demo.args([
        "run",
        "--release",
        "--quiet",
        "--",
        "demo",
        "--phase-ms",
        "1500",
        "--report",
    ]);
    // On a busy machine a claim about time may fail: the page says so, and is there all the same.
    let _ended = workspace::is_success(demo.arg(&report))?;
    let page = fs::read_to_string(&report).map_err(|source| Error::Read {
        path: report.clone(),
        source,
    })?;
    let probed = folder.join("probed.html");
    let text = page.replacen("</body>", &format!("{PROBE}</body>"), 1);
    fs::write(&probed, text).map_err(|source| write_error(&probed, source))?;
    let mut problems = check_page(&page);
    for look in LOOKS {
        let (found, console) = look_at(&browser, &probed, look)?;
        let about = |problem: String| format!("{}: {problem}", look.0);
        problems.extend(judge(&found, look).into_iter().map(about));
        problems.extend(console.into_iter().map(about));
        let picture = folder.join(format!("{}.png", look.0));
        let mut screenshot = command(&browser, look);
        screenshot.arg(format!("--screenshot={}", picture.display()));
        workspace::is_success(screenshot.arg(url(&report)))?;
        println!("{}", picture.display());
    }
    problems.iter().for_each(|problem| println!("{problem}"));
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Error::Report(problems.len())),
    }
}

fn write_error(path: &Path, source: std::io::Error) -> Error {
    Error::Write {
        path: path.to_owned(),
        source,
    }
}

fn find() -> Option<PathBuf> {
    let is_there = |name: &&str| {
        let version = Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        version.is_ok_and(|status| status.success())
    };
    BROWSERS
        .iter()
        .find(|name| is_there(name))
        .map(PathBuf::from)
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn command(browser: &Path, (_, wide, high, is_dark): (&str, u32, u32, bool)) -> Command {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--disable-gpu",
            "--no-sandbox",
            "--hide-scrollbars",
        ])
        .arg(format!("--window-size={wide},{high}"))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!is_dark)
        ))
        .args(["--enable-logging=stderr", "--disable-dev-shm-usage"])
        .stdin(Stdio::null());
    command
}

/// What the probe found, and what the console said.
fn look_at(
    browser: &Path,
    page: &Path,
    look: (&str, u32, u32, bool),
) -> Result<(serde_json::Value, Vec<String>), Error> {
    let mut dump = command(browser, look);
    dump.args(["--dump-dom", &url(page)]);
    let program = workspace::describe(&dump);
    let output = dump
        .output()
        .map_err(|source| Error::Start { program, source })?;
    let document = String::from_utf8_lossy(&output.stdout);
    let probe = document.split("<pre id=\"probe\">").nth(1);
    let probe = probe
        .and_then(|rest| rest.split("</pre>").next())
        .unwrap_or("null");
    let said = String::from_utf8_lossy(&output.stderr);
    let console = said.lines().filter(|line| line.contains(":CONSOLE"));
    let console = console.map(|line| format!("the console says: {line}"));
    Ok((serde_json::from_str(probe)?, console.collect()))
}

/// What the page must be without a browser.
fn check_page(page: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if page.len() > 1 << 20 {
        problems.push(format!(
            "the page has {} bytes, more than 1 MiB",
            page.len()
        ));
    }
    for word in [
        "<script",
        "src=\"http",
        "href=\"http",
        "url(http",
        "@import",
    ] {
        if page.contains(word) {
            problems.push(format!("the page has {word}: it must stand alone"));
        }
    }
    problems
}

/// What is wrong with a look at it.
fn judge(found: &serde_json::Value, (_, wide, _, is_dark): (&str, u32, u32, bool)) -> Vec<String> {
    let mut problems = Vec::new();
    let plots = found["plots"].as_array().map_or(&[][..], Vec::as_slice);
    if (plots.len() as u64) < MIN_PLOTS {
        problems.push(format!("{} plots, expected {MIN_PLOTS}", plots.len()));
    }
    for plot in plots {
        let number = |name: &str| plot[name].as_f64().unwrap_or(0.0);
        let label = plot["label"].as_str().unwrap_or("");
        let is_seen = number("wide") > 250.0 && number("high") > 150.0 && number("drawn") > 4.0;
        if !is_seen || label.is_empty() {
            problems.push(format!(
                "the plot '{label}' is empty, small or without a name: {plot}"
            ));
        }
    }
    if found["tables"].as_u64().unwrap_or(0) < MIN_PLOTS {
        problems.push("not every plot has its table".to_owned());
    }
    let scroll = found["scroll"].as_f64().unwrap_or(f64::MAX);
    if scroll > found["width"].as_f64().unwrap_or(f64::from(wide)) {
        problems.push(format!(
            "{scroll} wide in a window of {wide}: it scrolls sideways"
        ));
    }
    let back = found["back"].as_str().unwrap_or("");
    if back.contains("255, 255, 255") == is_dark {
        problems.push(format!("the background is {back}"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LOOK: (&str, u32, u32, bool) = ("light", 400, 800, false);

    fn found() -> serde_json::Value {
        let plot = json!({"wide": 300.0, "high": 200.0, "drawn": 9, "label": "memory"});
        json!({"plots": vec![plot; 10], "scroll": 400, "width": 400, "tables": 10,
               "back": "rgb(255, 255, 255)"})
    }

    #[test]
    fn a_page_with_all_plots_is_good() {
        assert_eq!(judge(&found(), LOOK), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_with_a_page_is_named() {
        for (change, text) in [
            (json!({"plots": []}), "0 plots"),
            (json!({"scroll": 401}), "sideways"),
            (json!({"tables": 2}), "its table"),
            (json!({"back": "rgb(0, 0, 0)"}), "background"),
            (json!(null), "0 plots"),
        ] {
            let mut page = found();
            match change.as_object() {
                Some(fields) => fields
                    .iter()
                    .for_each(|(name, value)| page[name] = value.clone()),
                None => page = serde_json::Value::Null,
            }
            let problems = judge(&page, LOOK).join("; ");
            assert!(problems.contains(text), "{text} is not in {problems}");
        }
        let mut page = found();
        page["plots"][3]["drawn"] = json!(0);
        assert_eq!(judge(&page, LOOK).len(), 1);
    }

    #[test]
    fn a_page_that_needs_others_is_refused() {
        assert_eq!(check_page("<p>alone</p>"), Vec::<String>::new());
        assert_eq!(check_page("<script>1</script>").len(), 1);
        assert_eq!(check_page(&"x".repeat(2 << 20)).len(), 1);
    }
}
