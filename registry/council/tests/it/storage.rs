//! The file: openraft's suite, whose it is, and what a failing disk does.

use causeway_registry_council::{Applied, Log, Registers, Store, StoreError, Types};
use openraft::testing::{StoreBuilder, Suite};

use crate::disk::Disk;

struct Builder;

impl StoreBuilder<Types, Log, Applied<Registers>, tempfile::TempDir> for Builder {
    async fn build(
        &self,
    ) -> Result<(tempfile::TempDir, Log, Applied<Registers>), openraft::StorageError<u64>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 0, 1).expect("opens");
        let applied = Applied::recover(store.clone(), Registers::default())
            .await
            .expect("an empty file");
        Ok((folder, Log::new(store), applied))
    }
}

#[test]
fn openraft_accepts_the_storage() {
    Suite::test_all(Builder).expect("openraft's suite");
}

#[test]
fn a_folder_has_one_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = Store::open(folder.path(), 1, 1).expect("opens");
    let error = Store::open(folder.path(), 1, 1).expect_err("in use");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    assert!(Store::open(folder.path(), 1, 1).is_ok());
}

#[tokio::test]
async fn a_file_is_one_members_and_one_clusters() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    {
        let store = Store::open(folder.path(), 1, 11).expect("opens");
        assert_eq!(store.identity().incarnation, 1);
        store.bind(0xa, false).await.expect("a fresh file");
        store.bind(0xa, false).await.expect("the same");
        let error = store.bind(0xb, false).await.expect_err("another");
        assert!(
            matches!(error, StoreError::OtherCluster { found: 0xa, .. }),
            "{error}"
        );
    }
    let error = Store::open(folder.path(), 2, 22).expect_err("another member's");
    assert!(
        matches!(error, StoreError::OtherMember { found: 1, .. }),
        "{error}"
    );
    let store = Store::open(folder.path(), 1, 33).expect("opens");
    let identity = store.identity();
    assert_eq!((identity.birth, identity.incarnation), (11, 2));
    assert_eq!(identity.cluster, Some(0xa));
}

#[tokio::test]
async fn a_full_disk_is_said_to_be_one() {
    let disk = Disk::default();
    let store = Store::with_backend(disk.open(), 1, 1).expect("opens");
    disk.fill();
    let error = store.bind(1, true).await.expect_err("no space");
    let text = error.to_string();
    assert!(
        text.contains("No space left") && text.contains("free space"),
        "{text}"
    );
    assert_eq!(store.identity().cluster, None);
}
