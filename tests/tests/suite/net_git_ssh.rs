//! git inside SSH: judged by repository, logged in with the person's keys outside, which nothing inside has.

use crate::net::{Net, net};
use airlock_tests::Output;
use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

/// A person with a key and hosts that are known.
struct Person {
    net: Net,
    home: PathBuf,
    name: String,
}

const FETCH: &str = "git = \"fetch\"\nrepositories = [\"acme/web\"]";
const PUSH: &str = "git = \"push\"\nrepositories = [\"acme/web\"]";

fn person() -> Option<Person> {
    let net = net()?;
    let home = net.world.aside("person");
    let own = home.join(".ssh");
    fs::create_dir_all(&own).expect("a home");
    let name = net.internet.name("ssh");
    let key = own.join("id_ed25519");
    fs::copy(net.internet.file("ssh_client"), &key).expect("a key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
    let known = fs::read_to_string(net.internet.file("known_hosts")).expect("a host that is known");
    let known = known.replacen("ssh.test", &format!("[{name}]:2222"), 1);
    fs::write(own.join("known_hosts"), known).expect("a host that is known");
    Some(Person { net, home, name })
}

impl Person {
    fn policy(&self, keys: &str) -> String {
        let text = format!("[[rule]]\nallow = \"{}\"\nports = [2222]\n{keys}\n", self.name);
        let path = self.net.world.aside("policy").join("policy.toml");
        fs::write(&path, text).expect("a policy");
        path.to_str().expect("a path").to_owned()
    }

    fn run(&self, keys: &str, script: &str) -> Output {
        let policy = self.policy(keys);
        let airlock = self.net.world.sh(["--policy", &policy], script);
        airlock.env("HOME", &self.home).run()
    }

    fn url(&self, repository: &str) -> String {
        format!("ssh://airlock-test@{}:2222/{repository}", self.name)
    }

    /// What the server was asked to run, by us and by others.
    fn commands(&self, with: &str) -> Vec<String> {
        let text = fs::read_to_string(self.net.internet.file("ssh_commands")).expect("the server's list");
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}

#[test]
fn a_repository_that_a_rule_names_is_cloned_with_no_key_inside() {
    let Some(person) = person() else { return };

    let url = person.url("acme/web.git");
    let script = format!(
        "ls -a ~/.ssh 2>/dev/null; env | grep -c SSH_AUTH; git clone -q {url} web && cat web/README && sha256sum < web/large"
    );
    let said = person.run(FETCH, &script).succeeded();

    let large: Vec<u8> = (0..300_000_u64)
        .flat_map(|index| {
            let word = u32::try_from(index).expect("small").to_be_bytes();
            [&word[..], &word[..], &index.to_le_bytes()[..]].concat()
        })
        .collect();
    let wanted = format!("0\nhello from git over ssh\n{}  -\n", sha256(&large));
    assert_eq!(said, wanted);
}

fn sha256(bytes: &[u8]) -> String {
    use std::io::Write as _;
    let mut child = Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sha256sum");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("it reads");
    let said = child.wait_with_output().expect("it ends").stdout;
    String::from_utf8_lossy(&said).split(' ').next().expect("a word").to_owned()
}

#[test]
fn a_push_needs_a_rule_that_says_so() {
    let Some(person) = person() else { return };
    let url = person.url("acme/web.git");
    let branch = person.net.internet.mark().to_owned();
    let script = format!(
        "git clone -q {url} web && cd web && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && \
         git push -q origin HEAD:{branch}; echo $?"
    );

    let denied = person.run(FETCH, &script);
    let said = format!("{}{}", denied.stdout, denied.stderr);
    assert!(
        said.contains("airlock: git-receive-pack /acme/web.git at") && said.contains("is not allowed"),
        "{said}"
    );
    assert!(denied.stdout.ends_with("128\n"), "{said}");

    assert!(person.run(PUSH, &script).succeeded().ends_with("0\n"));
    let refs = person.net.internet.file("ssh_git").join("acme/web.git/refs/heads").join(&branch);
    assert!(refs.exists(), "the push that was allowed arrived");
}

#[test]
fn no_other_repository_and_no_other_command_reaches_the_server() {
    let Some(person) = person() else { return };
    let mark = person.net.internet.mark().to_owned();
    let login = format!("airlock-test@{}", person.name);
    let ssh = format!("ssh -p 2222 -o BatchMode=yes {login}");
    let script = format!(
        "git clone -q {} other; git clone -q {} none; {ssh} 'echo {mark}'; {ssh} \"git-upload-pack 'acme/web.git'; echo {mark}\"; \
         {ssh} \"git-upload-pack '../ssh_git/acme/{mark}'\"; {ssh}; {ssh} -W 127.0.0.1:22 </dev/null; \
         sftp -P 2222 -o BatchMode=yes {login} </dev/null; true",
        person.url("acme/other.git"),
        person.url(&format!("acme/{mark}.git")),
    );

    let said = person.run(FETCH, &script).stderr;
    // Outside, the same key has the same server run it.
    let mut control = Command::new("ssh");
    control.args(["-p", "2222", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-i"]);
    control.arg(person.home.join(".ssh/id_ed25519"));
    let known = format!("UserKnownHostsFile={}", person.home.join(".ssh/known_hosts").display());
    let ran =
        control.args(["-o", &known, &login, &format!("echo control-{mark}")]).output().expect("ssh runs");

    assert_eq!(String::from_utf8_lossy(&ran.stdout), format!("control-{mark}\n"));
    assert!(
        said.contains("git-upload-pack /acme/other.git at") && said.contains("only git-upload-pack and"),
        "{said}"
    );
    assert_eq!(person.commands(&mark), [format!("echo control-{mark}")]);
}

#[test]
fn a_host_whose_key_is_not_known_or_another_gets_nothing() {
    let Some(person) = person() else { return };
    let url = person.url("acme/web.git");
    let known = person.home.join(".ssh/known_hosts");
    let script = format!("git clone -q {url} web");

    fs::write(&known, "").expect("nobody is known");
    let unknown = person.run(FETCH, &script);
    let other = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
    fs::write(&known, format!("[{}]:2222 ssh-ed25519 {other}\n", person.name)).expect("another is known");
    let changed = person.run(FETCH, &script);

    assert!(unknown.stderr.contains("is not known: connect to it once outside"), "{}", unknown.stderr);
    assert!(changed.stderr.contains("its key is none that known_hosts has for it"), "{}", changed.stderr);
}

#[test]
fn the_agent_signs_for_git_and_for_nothing_else() {
    let Some(person) = person() else { return };
    let socket = person.net.world.aside("agent").join("socket");
    let mut agent = Command::new("ssh-agent").args(["-D", "-a"]).arg(&socket).spawn().expect("an agent");
    airlock_tests::eventually("the agent listens", || socket.exists().then_some(()));
    let key = person.home.join(".ssh/id_ed25519");
    let added = Command::new("ssh-add").arg("-q").arg(&key).env("SSH_AUTH_SOCK", &socket).status();
    assert!(added.is_ok_and(|status| status.success()));
    fs::remove_file(&key).expect("the key is gone");

    let policy = person.policy(FETCH);
    let script = format!("git clone -q {} web && cat web/README", person.url("acme/web.git"));
    let airlock = person.net.world.sh(["--policy", &policy], &script);
    let output = airlock.env("HOME", &person.home).env("SSH_AUTH_SOCK", &socket).run();
    agent.kill().expect("the agent ends");
    agent.wait().expect("the agent ends");

    assert_eq!(output.succeeded(), "hello from git over ssh\n");
}

#[test]
fn what_was_asked_of_a_repository_is_in_the_ledger() {
    let Some(person) = person() else { return };
    let policy = person.policy(FETCH);
    let sandbox = format!("led{}", person.net.internet.mark());
    let airlock = person.net.world.sh(
        ["--policy", &policy, "--name", &sandbox, "--keep"],
        &format!(
            "git clone -q {} web; git clone -q {} other",
            person.url("acme/web.git"),
            person.url("acme/other.git")
        ),
    );
    airlock.env("HOME", &person.home).run();

    let ledger = person.net.world.airlock(["ledger", &sandbox]).run().succeeded();

    assert!(ledger.contains("git-upload-pack") && ledger.contains("/acme/web.git"), "{ledger}");
    let denied = person.net.world.airlock(["ledger", &sandbox, "--denied"]).run().succeeded();
    assert!(denied.contains("/acme/other.git") && !denied.contains("/acme/web.git"), "{denied}");
}
