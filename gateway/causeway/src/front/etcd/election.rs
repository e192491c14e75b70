//! v3election of the embedded store (etcd: v3election/election.go, concurrency/election.go).

use bytes::Bytes;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::Api;
use super::contest::{self, Contest};
use super::relay::Responses;
use super::services::v3electionpb::election_server::Election;

/// Leaders that an observer has not read yet.
const UNREAD: usize = 16;

#[tonic::async_trait]
impl Election for Api {
    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let (contest, campaign) = Contest::begin(self, request);
        contest::refuse_owned(self, &campaign.name)?;
        let lease = contest.lease(campaign.lease).await?;
        let prefix = contest::prefix_of(&campaign.name);
        let key = contest::key_of(&prefix, lease);
        let put = contest::put_op(&key, campaign.value.clone(), lease);
        let entered = contest
            .txn(pb::TxnRequest {
                compare: vec![contest::created_at(&key, 0)],
                success: vec![put],
                failure: vec![contest::get_op(contest::single(&key))],
            })
            .await?;
        let mut leader = LeaderKey {
            name: campaign.name,
            key,
            rev: entered.header.map_or(0, |h| h.revision),
            lease,
        };
        let before = (!entered.succeeded).then(|| contest::first_of(&entered, 0).cloned());
        if let Some(before) = before.flatten() {
            leader.rev = before.create_revision;
            if before.value != campaign.value
                && let Err(error) = proclaim(&contest, &leader, campaign.value).await
            {
                let _ = contest.txn(resignation(&leader)).await;
                return Err(error);
            }
        }

        let mut waiting = Waiting {
            contest: &contest,
            leader: &leader,
            leaves: true,
        };
        let waited = contest.wait_for_older(&prefix, leader.rev).await;
        // Only a caller that is gone leaves; another failure keeps the place in the queue.
        waiting.leaves = false;
        drop(waiting);
        waited?;
        Ok(Response::new(CampaignResponse {
            header: entered.header,
            leader: Some(leader),
        }))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let (contest, asked) = Contest::begin(self, request);
        let leader = resumed(&contest, asked.leader).await?;
        let header = proclaim(&contest, &leader, asked.value).await?;
        Ok(Response::new(ProclaimResponse { header }))
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        let (contest, asked) = Contest::begin(self, request);
        let prefix = contest::prefix_of(&asked.name);
        let mut found = contest.range(contest::one_by_creation(&prefix)).await?;
        match found.kvs.pop() {
            Some(kv) => Ok(Response::new(LeaderResponse {
                header: found.header,
                kv: Some(kv),
            })),
            None => Err(Status::unknown("election: no leader")),
        }
    }

    type ObserveStream = Responses<LeaderResponse>;

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let (contest, asked) = Contest::begin(self, request);
        let (to_client, responses) = mpsc::channel(UNREAD);
        tokio::spawn(async move {
            let (gone, prefix) = (to_client.clone(), contest::prefix_of(&asked.name));
            tokio::select! {
                observed = observe(&contest, &prefix, &to_client) => {
                    if let Err(error) = observed {
                        let _ = to_client.send(Err(error)).await;
                    }
                }
                () = gone.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        let (contest, asked) = Contest::begin(self, request);
        let leader = resumed(&contest, asked.leader).await?;
        let header = contest.txn(resignation(&leader)).await?.header;
        Ok(Response::new(ResignResponse { header }))
    }
}

/// The leadership that a caller says it has.
async fn resumed(contest: &Contest, leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    let Some(mut leader) = leader else {
        return Err(Status::unknown("\"leader\" field must be provided"));
    };
    leader.lease = contest.lease(leader.lease).await?;
    Ok(leader)
}

async fn proclaim(
    contest: &Contest,
    leader: &LeaderKey,
    value: Bytes,
) -> Result<Option<pb::ResponseHeader>, Status> {
    let done = contest
        .txn(pb::TxnRequest {
            compare: vec![contest::created_at(&leader.key, leader.rev)],
            success: vec![contest::put_op(&leader.key, value, leader.lease)],
            failure: Vec::new(),
        })
        .await?;
    if done.succeeded {
        Ok(done.header)
    } else {
        Err(Status::unknown("election: not leader"))
    }
}

fn resignation(leader: &LeaderKey) -> pb::TxnRequest {
    pb::TxnRequest {
        compare: vec![contest::created_at(&leader.key, leader.rev)],
        success: vec![contest::delete_op(&leader.key)],
        failure: Vec::new(),
    }
}

/// Tells of every leader, and of every value that one proclaims.
async fn observe(
    contest: &Contest,
    prefix: &Bytes,
    to_client: &mpsc::Sender<Result<LeaderResponse, Status>>,
) -> Result<(), Status> {
    loop {
        let mut found = contest.range(contest::one_by_creation(prefix)).await?;
        let mut revision = found.header.map_or(0, |h| h.revision);
        let kv = match found.kvs.pop() {
            Some(kv) => kv,
            None => {
                let end = contest::after_slash(prefix);
                let mut all = contest.watch(prefix.clone(), end, revision)?;
                loop {
                    let change = all.next(&contest.caller).await?.ok_or_else(closed_early)?;
                    if !change.is_delete() {
                        revision = change.revision;
                        break change.kv();
                    }
                }
            }
        };
        let mut one = contest.watch(kv.key.clone(), Bytes::new(), revision)?;
        let mut shown = LeaderResponse {
            header: Some(contest.header(revision)),
            kv: Some(kv),
        };
        loop {
            if to_client.send(Ok(shown)).await.is_err() {
                return Ok(());
            }
            let change = one.next(&contest.caller).await?.ok_or_else(closed_early)?;
            if change.is_delete() {
                break;
            }
            shown = LeaderResponse {
                header: Some(contest.header(change.revision)),
                kv: Some(change.kv()),
            };
        }
    }
}

fn closed_early() -> Status {
    Status::unknown("election: observe closed early")
}

/// A candidate that waits; it resigns when its call ends before.
struct Waiting<'a> {
    contest: &'a Contest,
    leader: &'a LeaderKey,
    leaves: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.leaves {
            self.contest.withdraw(&resignation(self.leader));
        }
    }
}
