//! One behaviour each, in virtual time.

use std::time::Duration;

use causeway_registry_council::{
    CouncilError, JoinError, Reason, RegisterCommand, RegisterReply, Registers, StartError,
};
use tokio::time::Instant;

use crate::world::{CLUSTER, PATIENCE, World, compare_and_set, next};

#[tokio::test(start_paused = true)]
async fn any_member_decides_for_all() {
    let world = World::cluster(1, 3).await;
    for (at, member) in world.members.values().enumerate() {
        assert_eq!(next(member, "name").await, Ok(at as u64));
    }
    assert_eq!(
        compare_and_set(&world.members[&2], "k", None, "a").await,
        Ok(true)
    );
    assert_eq!(
        compare_and_set(&world.members[&3], "k", None, "b").await,
        Ok(false)
    );
    world.members[&1].read_index().await.expect("a majority");
    let seen = world.members[&1].read(|r| r.get(b"k").cloned());
    assert_eq!(seen.as_deref(), Some(b"a".as_slice()));
    world.agree().await;
}

#[tokio::test(start_paused = true)]
async fn proposals_that_wait_together_are_one_entry() {
    let world = World::cluster(20, 3).await;
    let leader = world.leader().await;
    let before = world.members[&leader].status().applied;
    let asked: Vec<_> = (0..900)
        .map(|at| {
            let member = world.members[&(at % 3 + 1)].clone();
            tokio::spawn(async move { next(&member, "n").await })
        })
        .collect();
    let mut numbers = Vec::new();
    for number in asked {
        numbers.push(number.await.expect("no panic").expect("a majority"));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..900).collect::<Vec<u64>>());
    world.agree().await;
    let entries = world.members[&leader].status().applied - before;
    assert!(entries < 90, "{entries} entries for 900 proposals");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_within_five_seconds() {
    for seed in 0..4 {
        let mut world = World::cluster(seed, 3).await;
        let leader = world.leader().await;
        world.kill(leader).await;
        let died = Instant::now();
        let next_leader = world.leader().await;
        assert_ne!(next_leader, leader);
        let took = died.elapsed();
        assert!(took < Duration::from_secs(5), "seed {seed}: {took:?}");
        assert_eq!(next(&world.members[&next_leader], "n").await, Ok(0));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_writes_fail_in_time_and_reads_go_on() {
    let mut world = World::cluster(2, 3).await;
    assert_eq!(
        compare_and_set(&world.members[&1], "k", None, "a").await,
        Ok(true)
    );
    world.agree().await;
    let leader = world.leader().await;
    let others: Vec<u64> = (1..=3).filter(|m| *m != leader).collect();
    world.kill(others[0]).await;
    world.kill(others[1]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let alone = &world.members[&leader];
    let asked = Instant::now();
    let error = next(alone, "n").await.expect_err("no majority");
    assert!(
        asked.elapsed() <= Duration::from_secs(8),
        "{:?}",
        asked.elapsed()
    );
    assert!(
        matches!(&error, CouncilError::NotApplied(r) if r.is_retryable()),
        "{error}"
    );
    let reason = alone.read_index().await.expect_err("no majority");
    assert!(reason.is_retryable(), "{reason}");
    assert!(!alone.status().has_majority);
    let seen = alone.read(|r| r.get(b"k").cloned());
    assert_eq!(seen.as_deref(), Some(b"a".as_slice()));
    // What was refused was not applied later on.
    world.start(others[0]).await;
    world.leader().await;
    assert_eq!(next(&world.members[&leader], "n").await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_leader_cannot_decide_or_read() {
    let world = World::cluster(3, 3).await;
    let old = world.leader().await;
    let others: Vec<u64> = (1..=3).filter(|m| *m != old).collect();
    world.split(&[old], &others);
    let written = next(&world.members[&old], "n").await.expect_err("cut off");
    assert!(
        matches!(written, CouncilError::Unknown),
        "it was in the leader's log: {written}"
    );
    world
        .until("another leader", |w| {
            others
                .iter()
                .all(|m| w.members[m].status().leader.is_some_and(|l| l != old))
        })
        .await;
    assert_eq!(next(&world.members[&others[0]], "n").await, Ok(0));
    assert!(
        world.members[&old].read_index().await.is_err(),
        "a stale read"
    );
    world.network.heal();
    world.agree().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_proposed_again_is_applied_once() {
    let world = World::cluster(4, 3).await;
    let leader = world.leader().await;
    let others: Vec<u64> = (1..=3).filter(|m| *m != leader).collect();
    let asker = &world.members[&others[0]];
    let command = RegisterCommand::Next { name: "n".into() };
    let ticket = asker.ticket().expect("few are waiting");
    // The question arrives, the answers do not: not even the news that it was decided.
    world.network.cut(leader, others[0]);
    let first = asker.propose_with(&ticket, &command).await;
    assert!(matches!(first, Err(CouncilError::Unknown)), "{first:?}");
    world.members[&others[1]]
        .read_index()
        .await
        .expect("a majority");
    let taken = world.members[&others[1]].read(|r: &Registers| r.next("n"));
    assert_eq!(taken, 1, "it was decided");
    world.network.heal();
    world.leader().await;
    let again = asker.propose_with(&ticket, &command).await;
    assert_eq!(again, Ok(RegisterReply::Number(0)));
    drop(ticket);
    assert_eq!(next(asker, "n").await, Ok(1));
    world.agree().await;
}

#[tokio::test(start_paused = true)]
async fn all_stop_at_once_and_come_back() {
    let mut world = World::cluster(5, 3).await;
    for at in 0..20 {
        assert_eq!(next(&world.members[&(at % 3 + 1)], "n").await, Ok(at));
    }
    for member in 1..=3 {
        world.kill(member).await;
    }
    for member in 1..=3 {
        world.start(member).await;
    }
    world.leader().await;
    assert_eq!(next(&world.members[&2], "n").await, Ok(20));
    world.agree().await;
    world
        .until("new runs are known", |w| {
            w.members[&1].members().values().all(|m| m.incarnation == 2)
        })
        .await;
}

/// A leader that comes back before anybody missed it must not read what it knew long ago.
#[tokio::test(start_paused = true)]
async fn a_leader_that_comes_back_reads_what_it_acknowledged() {
    let mut world = World::cluster(12, 3).await;
    let leader = world.leader().await;
    for at in 0..10 {
        assert_eq!(next(&world.members[&leader], "n").await, Ok(at));
    }
    for member in 1..=3 {
        world.kill(member).await;
    }
    for member in 1..=3 {
        world.start(member).await;
    }
    let back = &world.members[&leader];
    back.read_index().await.expect("a majority is back");
    assert_eq!(back.read(|r| r.next("n")), 10);
}

#[tokio::test(start_paused = true)]
async fn a_lost_folder_joins_as_a_new_member() {
    let mut world = World::cluster(6, 3).await;
    assert_eq!(next(&world.members[&1], "n").await, Ok(0));
    world.kill(3).await;
    // The same number on an empty folder: nobody speaks to it, and it may not come in.
    let empty = crate::disk::Disk::default();
    world.start_on(3, &empty, 999).await;
    let refused = world.members[&3].join(1, "", PATIENCE).await;
    assert_eq!(refused, Err(JoinError::Refused(Reason::OtherFolder(3))));
    assert_eq!(world.members[&3].status().leader, None);
    world.kill(3).await;
    world.start(4).await;
    world.members[&4]
        .join(2, "", PATIENCE)
        .await
        .expect("a new member");
    world.members[&4].forget(3).await.expect("a majority");
    world.members[&4]
        .forget(3)
        .await
        .expect("once more is harmless");
    assert_eq!(next(&world.members[&4], "n").await, Ok(1));
    world
        .until("gone", |w| {
            w.members[&1].status().voters == [1, 2, 4] && !w.members[&1].members().contains_key(&3)
        })
        .await;
    // The old folder comes back: it is told.
    let disk = world.disks[&3].clone();
    world.start_on(3, &disk, 0).await;
    world
        .until("told", |w| w.members[&3].status().forgotten)
        .await;
    let refused = next(&world.members[&3], "n").await;
    assert_eq!(refused, Err(CouncilError::NotApplied(Reason::Forgotten)));
    world.kill(3).await;
    world.agree().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_begins_once() {
    let mut world = World::new(7);
    world.start(1).await;
    let alone = &world.members[&1];
    let refused = next(alone, "n").await;
    assert_eq!(refused, Err(CouncilError::NotApplied(Reason::NotAMember)));
    assert_eq!(alone.init(CLUSTER).await, Ok(CLUSTER));
    assert_eq!(alone.init(5).await, Ok(CLUSTER), "the name stays");
    world.leader().await;
    assert_eq!(next(&world.members[&1], "n").await, Ok(0));
    let error = world.members[&1].forget(1).await.expect_err("the only one");
    assert_eq!(error, CouncilError::NotApplied(Reason::LastMember(1)));
    world.start(2).await;
    world.members[&2]
        .join(1, "", PATIENCE)
        .await
        .expect("joins");
    let error = world.members[&2]
        .init(9)
        .await
        .expect_err("joined another's");
    assert_eq!(error, StartError::NotFounder(CLUSTER));
    // A cluster of its own keeps it out.
    world.start(3).await;
    world.members[&3].init(77).await.expect("another cluster");
    let refused = world.members[&3].join(1, "", Duration::from_secs(5)).await;
    assert_eq!(
        refused,
        Err(JoinError::Refused(Reason::OtherCluster(CLUSTER)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_can_be_forgotten() {
    let world = World::cluster(8, 3).await;
    let old = world.leader().await;
    let other = (1..=3).find(|m| *m != old).expect("three members");
    world.members[&other].forget(old).await.expect("a majority");
    world
        .until("another leader", |w| {
            let status = w.members[&other].status();
            !status.voters.contains(&old) && status.leader.is_some_and(|l| l != old)
        })
        .await;
    assert_eq!(next(&world.members[&other], "n").await, Ok(0));
}

/// Who joins asks a member that is not the leader, and the leader dies at some moment of it.
#[tokio::test(start_paused = true)]
async fn a_join_survives_the_leaders_death() {
    for after in [1, 3, 6, 10, 30] {
        let mut world = World::cluster(13 + after, 3).await;
        let leader = world.leader().await;
        let via = (1..=3).find(|m| *m != leader).expect("three members");
        world.start(4).await;
        let newcomer = world.members[&4].clone();
        let joining = tokio::spawn(async move { newcomer.join(via, "", PATIENCE).await });
        tokio::time::sleep(Duration::from_millis(after)).await;
        world.kill(leader).await;
        joining.await.expect("no panic").expect("joins");
        assert_eq!(next(&world.members[&4], "n").await, Ok(0));
        world
            .until("four voters", |w| {
                w.members[&via].status().voters == [1, 2, 3, 4]
            })
            .await;
        world.start(leader).await;
        world.agree().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_was_away_long_gets_a_snapshot() {
    let mut world = World::new(9);
    world.settings.snapshot_every = 50;
    let mut world = world.grown(3).await;
    let away = (1..=3)
        .find(|m| Some(*m) != world.members[&1].status().leader)
        .expect("three");
    world.kill(away).await;
    let leader = world.leader().await;
    for at in 0..300 {
        assert_eq!(next(&world.members[&leader], "n").await, Ok(at));
    }
    // More than one piece of a snapshot.
    let large = "x".repeat(50_000);
    for at in 0..60 {
        let set = compare_and_set(&world.members[&leader], &at.to_string(), None, &large).await;
        assert_eq!(set, Ok(true));
    }
    world.start(away).await;
    world.agree().await;
    assert_eq!(world.members[&away].read(|r| r.next("n")), 300);
    // From its own snapshot, and once more.
    world.kill(away).await;
    world.start(away).await;
    world.agree().await;
    assert_eq!(next(&world.members[&away], "n").await, Ok(300));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_stops_one_member_with_a_word() {
    let mut world = World::cluster(10, 3).await;
    let full = world.leader().await;
    world.disks[&full].fill();
    let _ = next(&world.members[&full], "n").await;
    world
        .until("stopped", |w| w.members[&full].status().stopped.is_some())
        .await;
    let said = world.members[&full].status().stopped.expect("just seen");
    assert!(
        said.contains("No space left") && said.contains("free space"),
        "{said}"
    );
    let error = next(&world.members[&full], "n").await.expect_err("stopped");
    assert!(
        matches!(error, CouncilError::NotApplied(Reason::Stopped(_))),
        "{error}"
    );
    // The others go on; with space it comes back.
    let other = (1..=3).find(|m| *m != full).expect("three");
    let number = next(&world.members[&other], "n")
        .await
        .expect("two of three");
    world.disks[&full].free();
    world.kill(full).await;
    world.start(full).await;
    world.agree().await;
    assert_eq!(next(&world.members[&full], "n").await, Ok(number + 1));
}

#[tokio::test(start_paused = true)]
async fn at_rest_members_say_little() {
    for count in [3, 9] {
        let world = World::cluster(11, count).await;
        world.leader().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let sent = |w: &World| -> Vec<u64> { (1..=count).map(|m| w.network.sent(m).1).collect() };
        let before = sent(&world);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let rates: Vec<u64> = sent(&world)
            .iter()
            .zip(&before)
            .map(|(a, b)| (a - b) / 100)
            .collect();
        println!("{count} members at rest: {rates:?} B/s sent by each");
        assert!(rates.iter().sum::<u64>() < 5_000, "{rates:?}");
        assert!(rates.iter().any(|r| *r > 0), "{rates:?}");
    }
}
