//! Made-up trees of `/proc` and of cgroups.

use super::*;
use std::fs;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// What version 1 says where no limit is set: the largest number of bytes in whole pages.
const NO_LIMIT_V1: &str = "9223372036854771712\n";

/// A machine of 8 GiB.
struct Machine {
    root: TempDir,
}

impl Machine {
    fn new(cgroup: &str, mountinfo: &str) -> Machine {
        let machine = Machine {
            root: tempfile::tempdir().unwrap(),
        };
        machine.write("proc/self/cgroup", cgroup);
        machine.write("proc/self/mountinfo", mountinfo);
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A group's folder with files beside the one that every group has.
    fn group(&self, folder: &str, files: &[(&str, &str)]) {
        self.write(&format!("{folder}/cgroup.procs"), "1\n");
        for (name, text) in files {
            self.write(&format!("{folder}/{name}"), text);
        }
    }

    fn read(&self) -> Result<MachineMemory, Error> {
        MachineMemory::read(self.root.path(), 8 * GIB)
    }

    /// The limit in bytes, and the file that says it.
    fn limit(&self) -> (u64, Option<String>) {
        let found = self.read().unwrap();
        let file = found.cgroup.as_ref().map(|cgroup| self.name(&cgroup.file));
        (found.limit().as_u64(), file)
    }

    /// The file or folder that is not understood, and why.
    fn refusal(&self) -> (String, String) {
        match self.read() {
            Err(Error::CgroupLayout { path, problem }) => (self.name(&path), problem),
            other => panic!("{other:?}"),
        }
    }

    fn name(&self, path: &Path) -> String {
        let name = path.strip_prefix(self.root.path()).unwrap();
        name.to_str().unwrap().trim_end_matches('/').to_owned()
    }
}

fn found(bytes: u64, file: &str) -> (u64, Option<String>) {
    (bytes, Some(file.to_owned()))
}

fn refused(path: &str, problem: &str) -> (String, String) {
    (path.to_owned(), problem.to_owned())
}

const ALONE: (u64, Option<String>) = (8 * GIB, None);

const V2: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
    30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n";

const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
    32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";

const GROUPS_V1: &str = "5:cpu,cpuacct:/\n4:memory:/web/a:b\n1:name=systemd:/init\n";

/// A version 1 machine whose process is in `/web/a:b`.
fn v1(top: &str, web: &str, own: &str) -> Machine {
    let machine = Machine::new(GROUPS_V1, V1);
    let memory = "sys/fs/cgroup/memory";
    machine.group(memory, &[("memory.limit_in_bytes", top)]);
    machine.group(
        &format!("{memory}/web"),
        &[
            ("memory.limit_in_bytes", web),
            ("memory.use_hierarchy", "1\n"),
        ],
    );
    machine.group(
        &format!("{memory}/web/a:b"),
        &[
            ("memory.limit_in_bytes", own),
            ("memory.use_hierarchy", "1\n"),
        ],
    );
    machine
}

#[test]
fn without_cgroups_the_machine_counts_alone() {
    let machine = Machine {
        root: tempfile::tempdir().unwrap(),
    };
    assert_eq!(machine.limit(), ALONE);
    machine.write("proc/self/cgroup", "");
    machine.write("proc/self/mountinfo", V2);
    assert_eq!(machine.limit(), ALONE);
    // Groups without a mount, and without the memory controller.
    let machine = Machine::new("0::/web\n", "");
    assert_eq!(machine.limit(), ALONE);
    let machine = Machine::new("5:cpu,cpuacct:/\n1:name=memory:/a\n", V1);
    assert_eq!(machine.limit(), ALONE);
}

#[test]
fn version_2_takes_the_smallest_of_max_and_high_up_to_the_mount() {
    let machine = Machine::new("0::/user.slice/app/worker\n", V2);
    let top = "sys/fs/cgroup";
    machine.group(top, &[]);
    machine.group(
        "sys/fs/cgroup/user.slice",
        &[("memory.max", "3221225472\n"), ("memory.high", "max\n")],
    );
    machine.group("sys/fs/cgroup/user.slice/app", &[("memory.max", "max\n")]);
    // The controller is not switched on for it.
    machine.group("sys/fs/cgroup/user.slice/app/worker", &[]);
    let slice_max = "sys/fs/cgroup/user.slice/memory.max";
    assert_eq!(machine.limit(), found(3 * GIB, slice_max));
    let app_high = "sys/fs/cgroup/user.slice/app/memory.high";
    machine.write(app_high, "1073741824\n");
    assert_eq!(machine.limit(), found(GIB, app_high));
    let own_max = "sys/fs/cgroup/user.slice/app/worker/memory.max";
    machine.write(own_max, "1048576\n");
    assert_eq!(machine.limit(), found(MIB, own_max));
    machine.write(own_max, "0\n");
    assert_eq!(machine.limit(), found(0, own_max));
}

#[test]
fn limits_above_the_machines_memory_do_not_count() {
    let machine = Machine::new("0::/web\n", V2);
    machine.group("sys/fs/cgroup", &[]);
    let total = (8 * GIB).to_string();
    machine.group("sys/fs/cgroup/web", &[("memory.max", &total)]);
    assert_eq!(machine.limit(), ALONE);
    assert_eq!(v1(NO_LIMIT_V1, NO_LIMIT_V1, NO_LIMIT_V1).limit(), ALONE);
}

#[test]
fn version_1_takes_the_smallest_up_to_the_mount() {
    let own = "sys/fs/cgroup/memory/web/a:b/memory.limit_in_bytes";
    let web = "sys/fs/cgroup/memory/web/memory.limit_in_bytes";
    let machine = v1(NO_LIMIT_V1, "4294967296\n", "2147483648\n");
    assert_eq!(machine.limit(), found(2 * GIB, own));
    let machine = v1(NO_LIMIT_V1, "1073741824\n", "2147483648\n");
    assert_eq!(machine.limit(), found(GIB, web));
    // Groups of before 5.11 that leave their children out, first one that has none.
    let own_flag = "sys/fs/cgroup/memory/web/a:b/memory.use_hierarchy";
    machine.write(own_flag, "0\n");
    assert_eq!(machine.limit(), found(GIB, web));
    machine.write("sys/fs/cgroup/memory/web/memory.use_hierarchy", "0\n");
    assert_eq!(machine.limit(), found(2 * GIB, own));
    // One that is not shown.
    let stat = "sys/fs/cgroup/memory/web/a:b/memory.stat";
    machine.write(
        stat,
        "cache 9\nhierarchical_memory_limit 1048576\ntotal_cache 9\n",
    );
    assert_eq!(machine.limit(), found(MIB, stat));
}

#[test]
fn hybrid_machines_have_the_memory_controller_in_version_1() {
    let mounts = format!("{V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    let groups = "4:memory:/docker/7\n0::/docker/7\n";
    let machine = Machine::new(groups, &mounts);
    let memory = "sys/fs/cgroup/memory";
    machine.group(memory, &[("memory.limit_in_bytes", NO_LIMIT_V1)]);
    machine.group(
        &format!("{memory}/docker"),
        &[("memory.limit_in_bytes", NO_LIMIT_V1)],
    );
    machine.group(
        &format!("{memory}/docker/7"),
        &[("memory.limit_in_bytes", "1073741824\n")],
    );
    machine.group("sys/fs/cgroup/unified", &[]);
    // Not a file of this controller there, so that it must not be read.
    machine.group(
        "sys/fs/cgroup/unified/docker/7",
        &[("memory.max", "1048576\n")],
    );
    let file = "sys/fs/cgroup/memory/docker/7/memory.limit_in_bytes";
    assert_eq!(machine.limit(), found(GIB, file));
    // Version 1 without that controller.
    machine.write("proc/self/cgroup", "5:cpu,cpuacct:/\n0::/docker/7\n");
    let file = "sys/fs/cgroup/unified/docker/7/memory.max";
    assert_eq!(machine.limit(), found(MIB, file));
}

#[test]
fn containers_show_their_own_group_as_the_root() {
    // With a cgroup namespace: the group is `/`, and has the files of a group.
    let machine = Machine::new("0::/\n", V2);
    machine.group("sys/fs/cgroup", &[("memory.max", "1073741824\n")]);
    let file = "sys/fs/cgroup/memory.max";
    assert_eq!(machine.limit(), found(GIB, file));
    // Without one: the group has the host's path, and the mount shows a part of the tree.
    let mounts = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    let machine = Machine::new("4:memory:/docker/7/inner\n", mounts);
    let memory = "sys/fs/cgroup/memory";
    machine.group(memory, &[("memory.limit_in_bytes", "1073741824\n")]);
    let inner = "sys/fs/cgroup/memory/inner";
    machine.group(inner, &[("memory.limit_in_bytes", NO_LIMIT_V1)]);
    let file = "sys/fs/cgroup/memory/memory.limit_in_bytes";
    assert_eq!(machine.limit(), found(GIB, file));
    // The mount was made outside of the namespace: both are told from its root.
    let mounts = "30 22 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let machine = Machine::new("0::/../beside\n", mounts);
    machine.group("sys/fs/cgroup", &[]);
    machine.group("sys/fs/cgroup/beside", &[("memory.max", "1048576\n")]);
    let file = "sys/fs/cgroup/beside/memory.max";
    assert_eq!(machine.limit(), found(MIB, file));
}

#[test]
fn the_mount_that_shows_most_is_read_and_covered_ones_are_not() {
    let mounts = "29 22 0:26 / /covered rw - cgroup2 cgroup2 rw\n\
        30 22 0:26 /web/app /part rw - cgroup2 cgroup2 rw\n\
        31 22 0:26 /web /a\\040cgroup\\134\\x rw - cgroup2 cgroup2 rw\n\
        32 22 0:26 /elsewhere /elsewhere rw - cgroup2 cgroup2 rw\n";
    let machine = Machine::new("0::/web/app\n", mounts);
    fs::create_dir(machine.root.path().join("covered")).unwrap();
    machine.group("elsewhere", &[("memory.max", "1\n")]);
    machine.group("part", &[("memory.max", "2147483648\n")]);
    machine.group("a cgroup\\\\x", &[("memory.max", "1073741824\n")]);
    machine.group("a cgroup\\\\x/app", &[("memory.max", "2147483648\n")]);
    assert_eq!(machine.limit(), found(GIB, "a cgroup\\\\x/memory.max"));
}

#[test]
fn groups_outside_of_the_mounted_part_are_refused() {
    for (group, shown) in [
        ("/", "/web"),
        ("/webapp", "/web"),
        ("/../beside", "/"),
        ("/", "/.."),
        ("/../../beside", "/.."),
        ("/../beside", "/../.."),
    ] {
        let mounts = format!("30 22 0:26 {shown} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let machine = Machine::new(&format!("0::{group}\n"), &mounts);
        machine.group("sys/fs/cgroup", &[("memory.max", "1048576\n")]);
        machine.group("sys/fs/beside", &[("memory.max", "1048576\n")]);
        let problem = format!("group {group} lies outside of the part that is mounted, {shown}");
        assert_eq!(machine.refusal(), refused("sys/fs/cgroup", &problem));
    }
}

#[test]
fn files_that_are_not_understood_are_refused() {
    let machine = Machine::new("0::/web\n", V2);
    machine.group("sys/fs/cgroup", &[]);
    let gone = refused("sys/fs/cgroup/web", "group /web is not there");
    assert_eq!(machine.refusal(), gone);
    let max = "sys/fs/cgroup/web/memory.max";
    for text in [
        "",
        "\n",
        "maximum\n",
        "-1\n",
        "1 GiB\n",
        "18446744073709551616\n",
    ] {
        machine.group("sys/fs/cgroup/web", &[("memory.max", text)]);
        let problem = format!("'{}' is no number of bytes", text.trim());
        assert_eq!(machine.refusal(), refused(max, &problem));
    }
    // There, but not to be read as a file.
    fs::remove_file(machine.root.path().join(max)).unwrap();
    fs::create_dir(machine.root.path().join(max)).unwrap();
    assert_eq!(machine.refusal().0, max);
}

#[test]
fn version_1_without_its_files_is_refused() {
    let machine = v1(NO_LIMIT_V1, NO_LIMIT_V1, "2147483648\n");
    let stat = "sys/fs/cgroup/memory/web/a:b/memory.stat";
    machine.write(stat, "hierarchical_memory_limit many\n");
    let problem = "'many' is no number of bytes";
    assert_eq!(machine.refusal(), refused(stat, problem));
    let web = "sys/fs/cgroup/memory/web/memory.limit_in_bytes";
    fs::remove_file(machine.root.path().join(web)).unwrap();
    let problem = "a group of the memory controller has this file";
    assert_eq!(machine.refusal(), refused(web, problem));
}

#[test]
fn lines_that_are_not_understood_are_refused() {
    for line in ["memory", "4:memory", "4:memory:", "0::web"] {
        let machine = Machine::new(&format!("1:cpu:/\n{line}\n"), V2);
        let problem = format!("the line '{line}' names not a group");
        assert_eq!(machine.refusal(), refused("proc/self/cgroup", &problem));
    }
    for line in [
        "30",
        "30 22 0:26 / /sys/fs/cgroup rw cgroup2 x rw",
        "1 2 3 4 5 6 - cgroup2 x",
    ] {
        let machine = Machine::new("0::/web\n", &format!("{line}\n"));
        let problem = format!("the line '{line}' names not a mount");
        assert_eq!(machine.refusal(), refused("proc/self/mountinfo", &problem));
    }
    let machine = Machine::new("0::/web\n", "");
    let cgroup = machine.root.path().join("proc/self/cgroup");
    fs::remove_file(&cgroup).unwrap();
    fs::create_dir(&cgroup).unwrap();
    assert_eq!(machine.refusal().0, "proc/self/cgroup");
}

#[test]
fn shares_round_down_and_are_at_most_the_whole() {
    let memory = |bytes| MachineMemory {
        total: ByteSize(bytes),
        cgroup: None,
    };
    assert_eq!(memory(8 * GIB).share_pages(0.5, 1 << 32), 1 << 20);
    assert_eq!(memory(8191).share_pages(1.0, 9), 1);
    assert_eq!(memory(9 * 4096).share_pages(0.5, 9), 4);
    assert_eq!(memory(u64::MAX).share_pages(1.0, u64::MAX), u64::MAX / 4096);
    assert_eq!(memory(8 * GIB).share_pages(0.5, 1000), 1000);
}

#[test]
fn what_was_found_reads_well() {
    let mut of = MachineMemory {
        total: ByteSize(8 * GIB),
        cgroup: None,
    };
    assert_eq!(of.to_string(), "8.0 GiB (the machine's memory)");
    of.cgroup = Some(CgroupLimit {
        limit: ByteSize(GIB),
        file: "/sys/fs/cgroup/web/memory.max".into(),
    });
    let share = BudgetSource::Share { fraction: 0.5, of };
    let text = "0.5 of 1.0 GiB (/sys/fs/cgroup/web/memory.max)";
    assert_eq!(share.to_string(), text);
}

#[test]
fn this_machine_says_what_meminfo_says() {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = total
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert_eq!(memory_limit().unwrap().total.as_u64(), kib * 1024);
}
