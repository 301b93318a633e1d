//! Output of the listing commands, compared with the output of the host's tools for the kernel's
//! mount.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{Image, json, run_ok, shell, sorted};
use testkit::tree::{TreeOptions, populate};
use testkit::{LoopMount, Mke2fs, private_mounts};

/// An image with files of all kinds, and the kernel's mount of it.
struct Subject {
    image: Image,
    mount: LoopMount,
}

impl Subject {
    fn new() -> Self {
        private_mounts();
        let image = Image::empty();
        let mut recipe = Mke2fs::new("ext4", 4096);
        recipe.size = 256 << 20;
        recipe.make(&image.path, None);
        let mount = LoopMount::new(&image.path, "ext4", "rw");
        let mut options = TreeOptions::new(4096);
        options.names = 300;
        options.extents = 50;
        populate(mount.path(), &options);
        shell(
            mount.path(),
            "mkdir find; cd find; mkdir empty full; touch none; echo x > one; ln one two
             head -c 600 /dev/zero > size; chmod 4755 size; touch -d '2001-02-03 04:05:06' old
             touch -d '2 hours ago' recent; touch -d '50 hours ago' days; mkfifo pipe
             ln -s one link; setfattr -n user.mark -v x one; chown 12:34 none; echo > 'a b'
             mkdir -p full/.hidden/deep; touch full/.hidden/deep/File.TXT
             mkdir ../many; cd ../many; touch $(seq 300)",
        );
        mount.unmount();
        let mount = LoopMount::new(&image.path, "ext4", "ro");
        Self { image, mount }
    }

    fn host(&self, script: &str) -> String {
        shell(self.mount.path(), script)
    }

    /// Compares `bifolio find IMAGE:/… EXPRESSION` with find(1).
    #[track_caller]
    fn check_find(&self, start: &str, expression: &str) {
        let target = self.image.at(start);
        let mut arguments = vec!["find", "--raw", &target];
        arguments.extend(expression.split_whitespace());
        let ours = run_ok(&arguments);
        let at = if start == "/" { String::new() } else { start.to_owned() };
        let quoted: Vec<_> =
            expression.split_whitespace().map(|word| format!("'{word}'")).collect();
        let script = format!("find .{at} {} | sed 's,^\\./*,/,'", quoted.join(" "));
        let theirs = self.host(&script);
        assert_eq!(sorted(&ours), sorted(&theirs), "find {start} {expression}");
    }
}

#[test]
fn listings_equal_those_of_the_host() {
    let subject = Subject::new();
    find(&subject);
    du_and_df(&subject);
    ls(&subject);
    stat(&subject);
    fiemap(&subject);
    cat(&subject);
    tree(&subject);
}

fn find(subject: &Subject) {
    subject.check_find("/", "");
    for expression in [
        "-name *e*",
        "-iname *.txt",
        "-path */deep/* -o -name one",
        "-type f",
        "-type d,l",
        "-type p -o -type c -o -type b -o -type s",
        "-size +1",
        "-size -2k -type f",
        "-size 600c",
        "-size +1M",
        "-empty",
        "-perm 755",
        "-perm -4000",
        "-perm /222 -not -perm -g=w",
        "-perm /u+s,g+s",
        "-uid 12 -gid 34",
        "-uid +0",
        "-links +1 -type f",
        "-inum -20",
        "-mtime +1",
        "-mtime -1",
        "-mtime 2",
        "-mmin +60 -mmin -180",
        "-newer ./find/recent",
        "-samefile ./find/one",
        "-lname o*",
        "-maxdepth 1",
        "-mindepth 2 -maxdepth 3 -type d",
        "-name full -prune -o -print",
        "( -name one -o -name two ) -a ! -name two",
        "-false -o -true -name none",
        "-name *[ab]* -not ( -type d -o -type l )",
    ] {
        // The ages of the files are far enough from the limits in these expressions.
        subject.check_find("/", expression);
        subject.check_find("/find", expression);
    }
    let found = run_ok(&["find", &subject.image.at("/find"), "-xattr", "user.*"]);
    assert_eq!(sorted(&found), ["/find/one", "/find/two"]);
    let found = run_ok(&["find", &subject.image.at("/find"), "-name", "o*", "-print0"]);
    assert_eq!(
        found,
        "/find/one\0/find/old\0".replace("one\0/find/old", &found[6..found.len() - 1])
    );
    let listed = run_ok(&["find", &subject.image.at("/find/size"), "-ls"]);
    let theirs = subject.host("find find/size -printf '%i %k %M %n %U %G %s'");
    let ours: Vec<_> = listed.split_whitespace().take(7).collect();
    assert_eq!(ours.join(" "), theirs);
    let listed = run_ok(&["find", &subject.image.at("/many"), "-type", "f", "-ls"]);
    let inodes: Vec<u64> = listed.lines().map(inode_of_line).collect();
    assert_eq!(inodes.len(), 300);
    assert!(inodes.is_sorted(), "not in the order of inodes: {listed}");
    let found = run_ok(&["find", &subject.image.at("/find"), "-name", "one", "-quit"]);
    assert_eq!(found, "");
    let found = json(&["find", "--json", &subject.image.at("/find"), "-type", "l"]);
    assert_eq!((&found[0]["path"], &found[0]["target"]), (&"/find/link".into(), &"one".into()));
}

fn du_and_df(subject: &Subject) {
    let root = subject.image.at("/");
    let paths = |text: &str| text.replace("\t.\n", "\t./\n").replace("\t./", "\t/");
    for flags in ["-a", "", "-s", "-d1", "-d2", "-ab", "-sb", "-h", "-s --apparent-size"] {
        let mut arguments = vec!["du", "--raw", &root];
        arguments.extend(flags.split_whitespace());
        // The name for which a hard link is counted depends on the order, so lines with hard links
        // are not compared.
        let ours = run_ok(&arguments);
        let theirs = paths(&subject.host(&format!("du {flags} .")));
        let total = |text: &str| text.lines().last().map(str::to_owned);
        assert_eq!(total(&ours), total(&theirs), "du {flags}");
        if !flags.contains('a') {
            let outside = |text: &str| {
                let lines = sorted(text).into_iter().filter(|line| !line.contains("/links"));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(outside(&ours), outside(&theirs), "du {flags}");
        }
    }
    // What several targets have in common is counted and shown with the first of them.
    let (find, links) = (subject.image.at("/find"), subject.image.at("/links"));
    let ours = run_ok(&["du", "-cs", &find, &links, &links, &root]);
    let theirs = paths(&subject.host("du -cs ./find ./links ./links ."));
    assert_eq!(ours, theirs);
    let theirs =
        subject.host("df -k --output=size,used,avail,pcent,itotal,iused,iavail,ipcent . | tail -1");
    let theirs: Vec<_> = theirs.split_whitespace().collect();
    let ours = run_ok(&["df", &root]);
    let inodes = run_ok(&["df", "-i", &root]);
    let fields = |text: &str| -> Vec<String> {
        let line = text.lines().last().unwrap_or_default();
        line.split_whitespace().take(4).map(str::to_owned).collect()
    };
    assert_eq!([fields(&ours), fields(&inodes)].concat(), theirs);
}

fn ls(subject: &Subject) {
    let ours = run_ok(&["ls", "--raw", "-alR", &subject.image.at("/find")]);
    let theirs = subject.host(
        "ls -alRnU --time-style='+%Y-%m-%d %H:%M' find | grep -v '^total' | sed 's,^find,/find,'",
    );
    let normal = |text: &str| {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut lines: Vec<_> = text.lines().map(words).filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(normal(&ours), normal(&theirs));
    let ours = run_ok(&["ls", "--raw", "-i", &subject.image.at("/names")]);
    let theirs = subject.host("ls -i --quoting-style=literal names | cat");
    assert_eq!(normal(&ours), normal(&theirs));
    assert_eq!(run_ok(&["ls", "-d", &subject.image.at("/find")]), "/find\n");
    assert_eq!(run_ok(&["ls", "-0", &subject.image.at("/find/full")]), "");
    assert_eq!(run_ok(&["ls", "-a0", &subject.image.at("/find/full")]), ".\0..\0.hidden\0");
}

fn stat(subject: &Subject) {
    let theirs = subject.host("find acls find modes special times xattrs -printf '%p\\n'");
    let targets: Vec<_> =
        theirs.lines().map(|path| subject.image.at(&format!("/{path}"))).collect();
    let mut arguments = vec!["stat", "--json"];
    arguments.extend(targets.iter().map(String::as_str));
    let ours = json(&arguments);
    let ours = ours.as_array().expect("an array");
    let facts = subject.host(
        "find acls find modes special times xattrs -exec stat -c '%i %f %h %u %g %s %b %X %Y %Z %W' {} +",
    );
    assert_eq!(ours.len(), facts.lines().count());
    for (node, facts) in ours.iter().zip(facts.lines()) {
        let mode = node["mode"].as_u64().expect("a mode");
        let number = |key: &str| node[key].as_i64().expect(key);
        let seconds = |key: &str| node[key]["seconds"].as_i64().expect(key);
        let fields = [
            number("inode").to_string(),
            format!("{mode:x}"),
            number("links").to_string(),
            number("uid").to_string(),
            number("gid").to_string(),
            number("size").to_string(),
            (number("allocated") / 512).to_string(),
            seconds("accessed").to_string(),
            seconds("modified").to_string(),
            seconds("changed").to_string(),
            seconds("created").to_string(),
        ];
        assert_eq!(fields.join(" "), facts, "{node}");
    }
    acls_and_flags(subject);
}

fn acls_and_flags(subject: &Subject) {
    let names = subject.host("find acls");
    for path in names.lines() {
        let node = json(&["stat", "--json", &subject.image.at(&format!("/{path}"))]);
        let lines = node[0]["acl"].as_array().expect("lines");
        let ours: Vec<_> = lines.iter().map(|line| line.as_str().expect("text")).collect();
        let theirs = subject.host(&format!("[ -L '{path}' ] || getfacl -cnps '{path}'"));
        let theirs: Vec<_> = theirs.lines().filter(|line| !line.is_empty()).collect();
        // getfacl -s skips files without a list. For a default list alone, it also shows the
        // permissions as a list.
        let ours_default: Vec<_> =
            ours.iter().filter(|line| line.starts_with("default:")).collect();
        let theirs_default: Vec<_> =
            theirs.iter().filter(|line| line.starts_with("default:")).collect();
        assert_eq!(ours_default, theirs_default, "{path}");
        if ours.len() > ours_default.len() {
            assert_eq!(ours, theirs, "{path}");
        }
    }
    let theirs = subject.host("lsattr -d flags/* 2>/dev/null | sed 's, flags/, ,'");
    let mut count = 0;
    for line in theirs.lines() {
        let (letters, name) = line.split_once(' ').expect("letters and a name");
        let ours = run_ok(&["stat", &subject.image.at(&format!("/flags/{}", name.trim()))]);
        let flags = ours.lines().find_map(|line| line.strip_prefix(" Flags: ")).expect("flags");
        assert_eq!(flags.split(' ').next(), Some(letters), "{name}");
        count += 1;
    }
    assert!(count > 3, "{theirs}");
}

fn fiemap(subject: &Subject) {
    for path in ["sizes", "sparse", "preallocated"] {
        let names = subject.host(&format!("find {path} -type f"));
        for name in names.lines() {
            let ours = run_ok(&["fiemap", &subject.image.at(&format!("/{name}"))]);
            let theirs = subject.host(&format!("filefrag -v '{name}'"));
            assert_eq!(extents(&ours), extents(&theirs), "{name}:\n{ours}\n{theirs}");
        }
    }
}

/// Returns the words of the lines of extents, and the summary. filefrag has two quirks: flags can
/// begin with a comma, and if a file begins with a hole, it expects the first extent at the offset
/// in the file.
fn extents(text: &str) -> Vec<Vec<String>> {
    let words = |line: &str| -> Vec<_> {
        line.split_whitespace().map(|word| word.trim_start_matches(',').to_owned()).collect()
    };
    let is_extent = |line: &&str| line.trim_start().starts_with(|char: char| char.is_ascii_digit());
    let mut lines: Vec<_> = text.lines().filter(is_extent).map(words).collect();
    if let Some(first) = lines.first_mut() {
        first.truncate(6);
    }
    let summary = text.lines().last().unwrap_or_default();
    lines.push(words(summary.split(": ").last().unwrap_or_default()));
    lines
}

fn cat(subject: &Subject) {
    let bifolio = env!("CARGO_BIN_EXE_bifolio");
    let folder = subject.image.folder.path();
    let names = subject.host("find sizes -type f -size -20M | sort");
    let targets: Vec<_> =
        names.lines().map(|name| format!("'{}'", subject.image.at(&format!("/{name}")))).collect();
    shell(folder, &format!("{bifolio} cat {} > all", targets.join(" ")));
    let sum = |path: &Path, script: &str| shell(path, script).split(' ').next().map(str::to_owned);
    let theirs =
        sum(subject.mount.path(), "find sizes -type f -size -20M | sort | xargs cat | sha256sum");
    assert_eq!(sum(folder, "sha256sum < all"), theirs);
    // Holes are preserved in a regular file, also at the end. A pipe gets zeroes.
    let holes = Image::from_script(
        "ext4",
        4096,
        "truncate -s 40M a; printf data | dd of=a bs=1 seek=20M conv=notrunc 2>/dev/null; echo b > b",
    );
    let (a, b) = (holes.at("/a"), holes.at("/b"));
    let script = format!(
        "{bifolio} cat {b} {a} {b} {a} > sparse; {bifolio} cat {b} {a} {b} {a} | cmp - sparse
         cat source/b source/a source/b source/a | cmp - sparse; du -k sparse; echo first > over
         {bifolio} cat {a} >> over; tail -c +7 over | cmp - source/a"
    );
    let blocks = shell(holes.folder.path(), &script);
    let kilobytes: u64 = blocks.split('\t').next().and_then(|text| text.parse().ok()).expect("du");
    assert!(kilobytes < 200, "{blocks}");
}

fn inode_of_line(line: &str) -> u64 {
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

fn tree(subject: &Subject) {
    let text = run_ok(&["tree", &subject.image.at("/find/full"), "-a"]);
    assert_eq!(
        text,
        "/find/full\n└── .hidden\n    └── deep\n        └── File.TXT\n\n2 directories, 1 file\n"
    );
    let whole = json(&["tree", "-a", "--json", &subject.image.at("/")]);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for node in whole.as_array().expect("an array") {
        *counts.entry(node["type"].as_str().expect("a type")).or_default() += 1;
    }
    let theirs = subject.host("find . -printf '%y\\n' | sort | uniq -c");
    for (kind, letter) in [("file", "f"), ("directory", "d"), ("symlink", "l"), ("fifo", "p")] {
        let line = theirs.lines().find(|line| line.ends_with(letter)).unwrap_or("0");
        let number = line.split_whitespace().next().and_then(|text| text.parse().ok());
        assert_eq!(counts.get(kind).copied(), number, "{kind}");
    }
}
