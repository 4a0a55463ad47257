// Communicators of programs: what the estimate counts, and that they add no order of their own.
#include "validator/program/communicators.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "estimator/frameworks/native/communicators.h"
#include "estimator/plan/units.h"
#include "tests/validator/layouts.h"
#include "tests/validator/lower/random_plans.h"

namespace shardplan {
namespace {

std::int64_t bytes_of(const Program& program) {
  std::int64_t bytes = 0;
  for (const CommunicatorUse& use : communicators_of(program)) { bytes += device_bytes(use); }
  return bytes;
}

std::int64_t estimated_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  std::int64_t bytes = 0;
  for (const native::NativeCommunicator& communicator :
       native::native_communicators(job, plan, pp_rank)) {
    bytes += communicator.bytes;
  }
  return bytes;
}

Plan pipeline(std::int64_t pp, std::int64_t vpp) {
  Plan plan{.pp = pp, .vpp = vpp, .dp = 1};
  plan.schedule = vpp > 1 ? Schedule::kInterleaved1F1B : Schedule::k1F1B;
  return plan;
}

}  // namespace

TEST_CASE("what a rank waits for on one communicator is no word of another one") {
  std::set<std::string> streams;
  RandomPlans plans(20262);
  const auto check = [&](const Job& job, const Plan& plan, std::int64_t rank) {
    std::set<std::int64_t> words;
    for (const CommunicatorUse& use : communicators_of(lower(job, plan, rank, {}))) {
      const std::int64_t first = first_peer_word(use);
      CAPTURE(text_of(use.key));
      for (std::int64_t member = 0; first >= 0 && member < use.size(); ++member) {
        streams.emplace(name_of(use.key.stream));
        CHECK(first + member < kPeerWords);
        CHECK((member == use.index || words.insert(first + member).second));
      }
    }
  };
  for (int i = 0; i < 200; ++i) {
    const RandomPlan drawn = plans.next();
    CAPTURE(drawn.text());
    for (const std::int64_t rank : plans.ranks_of(drawn)) { check(drawn.job, drawn.plan, rank); }
  }
  for (const std::int64_t pp : {2, 4}) {  // the last stage sends to the first one, too
    for (std::int64_t rank = 0; rank < pp; ++rank) {
      check(tiny_job(tiny_model(), pp), pipeline(pp, 4 / pp), rank);
    }
  }
  CHECK(streams == std::set<std::string>{"tensor", "context", "data", "send"});
}

TEST_CASE("the estimate counts the communicators of every rank of random plans") {
  RandomPlans plans(20261);
  std::int64_t ranks = 0;
  for (int i = 0; i < 400; ++i) {
    const RandomPlan drawn = plans.next();
    for (const std::int64_t rank : plans.ranks_of(drawn)) {
      const Program program = lower(drawn.job, drawn.plan, rank, {});
      const std::int64_t stage = coordinates_of(drawn.job, drawn.plan, rank).pp;
      CAPTURE(drawn.text());
      CAPTURE(rank);
      const std::int64_t counted = bytes_of(program);
      const std::int64_t estimated = estimated_bytes(drawn.job, drawn.plan, stage);
      // Shards of a tied table that are empty on this rank are not reduced.
      const bool may_lack_tied_shard = drawn.job.model.tied_embeddings && drawn.plan.zero > 1;
      if (!may_lack_tied_shard || counted == estimated) {
        CHECK(counted == estimated);
      } else {
        CHECK(counted < estimated);
      }
      ++ranks;
    }
  }
  CHECK(ranks > 700);
}

TEST_CASE("messages of either direction have a communicator of their own") {
  const Job job = tiny_job(tiny_model(), 2);
  const std::vector<Program> programs = lower_all(job, pipeline(2, 1));
  for (const Program& program : programs) {
    std::map<std::string, CommunicatorUse> uses;
    for (const CommunicatorUse& use : communicators_of(program)) { uses[text_of(use.key)] = use; }
    REQUIRE(uses.size() == 3);  // and the norm
    CHECK(uses.contains("data 0,1"));
    for (const std::int64_t i : uses.at("send 0,1").operations) {
      const OpKind kind = program.operations[static_cast<std::size_t>(i)].kind;
      CHECK(kind == (program.rank == 0 ? OpKind::kSend : OpKind::kReceive));
    }
    for (const std::int64_t i : uses.at("send 1,0").operations) {
      const OpKind kind = program.operations[static_cast<std::size_t>(i)].kind;
      CHECK(kind == (program.rank == 1 ? OpKind::kSend : OpKind::kReceive));
    }
  }
}

TEST_CASE(
    "every communicator lives on one stream, and members agree on it and on its first calls") {
  RandomPlans plans(77);
  for (int i = 0; i < 60; ++i) {
    const RandomPlan drawn = plans.next();
    CAPTURE(drawn.text());
    for (const std::int64_t rank : plans.ranks_of(drawn)) {
      const Program program = lower(drawn.job, drawn.plan, rank, {});
      for (const CommunicatorUse& use : communicators_of(program)) {
        REQUIRE(use.key.ranks[static_cast<std::size_t>(use.index)] == rank);
        const auto& at = [&](std::int64_t op) -> const Operation& {
          return program.operations[static_cast<std::size_t>(op)];
        };
        for (const std::int64_t op : use.operations) {
          CHECK(at(op).stream == at(use.operations.front()).stream);
        }
        const std::int64_t peer = use.key.ranks[use.index == 0 ? 1 : 0];
        const Program other = lower(drawn.job, drawn.plan, peer, {});
        const std::vector<CommunicatorUse> theirs = communicators_of(other);
        const auto match = std::ranges::find(theirs, use.key, &CommunicatorUse::key);
        REQUIRE(match != theirs.end());
        CHECK(match->channels == use.channels);
        CHECK(match->operations.size() == use.operations.size());
        CHECK(first_calls(other, *match).size() == first_calls(program, use).size());
      }
    }
  }
}

TEST_CASE("exchanges of gathered keys' gradients run on the gathers' communicator, and not first") {
  const Job job = tiny_job(tiny_model(), 2);
  const Program program = lower(job, {.cp = 2, .cp_method = CpMethod::kAllGather}, 0, {});
  std::int64_t exchanges = 0;
  for (const CommunicatorUse& use : communicators_of(program)) {
    const auto kind = [&](std::int64_t i) {
      return program.operations[static_cast<std::size_t>(i)].kind;
    };
    const auto here = std::ranges::count(use.operations, OpKind::kExchange, kind);
    exchanges += here;
    if (here > 0) {
      CHECK(text_of(use.key) == "tensor 0,1");
      CHECK(std::ranges::count(use.operations, OpKind::kAllGather, kind) == 2 * here);
      const std::vector<std::int64_t> calls = first_calls(program, use);
      REQUIRE(calls.size() == 1);
      CHECK(kind(calls[0]) == OpKind::kAllGather);
    }
  }
  CHECK(exchanges == std::ranges::count(program.operations, OpKind::kExchange, &Operation::kind));
  CHECK(exchanges > 0);
}

TEST_CASE("one stage of a pipeline of four has a communicator to and from either neighbour") {
  const Job job = tiny_job(tiny_model(), 4);
  const std::vector<Program> programs = lower_all(job, pipeline(4, 1));
  const auto count = [&](std::int64_t rank) {
    return std::ranges::count_if(communicators_of(programs[static_cast<std::size_t>(rank)]),
                                 &CommunicatorUse::is_message);
  };
  CHECK(count(0) == 2);
  CHECK(count(1) == 4);
  CHECK(count(3) == 2);
  // By hand: 4 channels; 4 MiB + 4 * 6 MiB twice for a neighbour, 4 * (10 + 2) MiB connected.
  CHECK(estimated_bytes(job, pipeline(4, 1), 0) == (2 * 28 + 48 + 4 + 2 * 18) * kMiB);
}

}  // namespace shardplan
