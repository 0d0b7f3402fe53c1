//! Settings in files: which count, and what they may do.

use airlock_tests::World;
use serde_json::Value;

/// The rows of `config show` for one key.
fn rows(world: &World, key: &str) -> Vec<Value> {
    let shown = world.airlock(["config", "show", "--origin", "--json"]).run().succeeded();
    let all = shown.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    all.filter(|row| row["key"] == key).collect()
}

#[test]
fn a_persons_own_settings_count_for_every_sandbox_and_below_others() {
    let world = World::new();
    // The state directory is made by the first command.
    world.airlock(["ls"]).run().succeeded();
    let own = "env = [\"A=own\", \"B=own\"]\nhostname = \"own\"\n";
    std::fs::write(world.home().join("config.toml"), own).expect("a file");
    let tell = "echo $A $B $(hostname)";
    assert_eq!(world.sh([], tell).run().succeeded(), "own own own\n");

    world.write("airlock.toml", "env = [\"A=project\"]\nhostname = \"project\"\n");
    world.airlock(["trust", "--yes"]).run().succeeded();
    assert_eq!(world.sh([], tell).run().succeeded(), "project own project\n");
    assert_eq!(world.sh(["--env", "B=typed"], tell).run().succeeded(), "project typed project\n");

    let hostnames = rows(&world, "hostname");
    assert_eq!(hostnames.len(), 2, "{hostnames:?}");
    assert_eq!((&hostnames[0]["replaced"], &hostnames[0]["line"]), (&Value::Bool(true), &Value::from(2)));
    assert_eq!(hostnames[1]["value"], "project");
}

#[test]
fn a_projects_file_that_nobody_trusted_may_only_narrow() {
    let world = World::new();
    world.write("airlock.toml", "workspace = \"ro\"\nnofile = 99\n[[rule]]\ndeny = \"example.com\"\n");
    let said = world.sh([], "ulimit -n; touch x 2>/dev/null || echo closed").run().succeeded();
    assert_eq!(said, "99\nclosed\n");

    for (text, key) in [
        ("workspace = \"rw\"\n", "workspace"),
        ("allow = [\"example.com\"]\n", "allow"),
        ("mount = [\"/srv:/srv\"]\n", "mount"),
        ("env = [\"HOME\"]\n", "env"),
    ] {
        world.write("airlock.toml", text);
        let said = world.sh([], "true").run().failed(125);
        assert!(said.contains("airlock.toml is not trusted") && said.contains(&format!("`{key}`")), "{said}");
    }
    world.airlock(["trust", "--yes"]).run().succeeded();
    world.sh([], "true").run().succeeded();
}

#[test]
fn what_init_writes_counts_and_changes_nothing() {
    let world = World::new();
    world.write("Cargo.toml", "");
    world.airlock(["init"]).run().succeeded();
    assert!(world.read("airlock.toml").contains("# allow = [\"crates\"]"));
    world.sh([], "true").run().succeeded();

    let said = world.airlock(["init"]).run().failed(1);
    assert!(said.contains("airlock.toml is there already"), "{said}");
    world.airlock(["init", "--force"]).run().succeeded();

    let schema = world.airlock(["config", "schema"]).run().succeeded();
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    assert_eq!(schema["properties"]["memory"]["type"][0], "string");
}
