#include "validator/supervise/stuck_rank.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace shardplan {
namespace {

enum class Own { kExcluded, kIncluded };

// The operations that are launched before this one, and itself; all of them for one behind the
// last, none where the step has begun but no operation has.
std::vector<std::int64_t> launched(const Program& program, std::int64_t operation, Own own) {
  if (operation < 0) {
    return {};
  }
  std::vector<std::int64_t> launches = launch_order(program);
  auto end = std::ranges::find(launches, operation);
  end += own == Own::kIncluded && end != launches.end() ? 1 : 0;
  launches.erase(end, launches.end());
  return launches;
}

// How many of the operations do a thing of this kind with the same partners, so that the n-th time
// here meets the n-th time there.
std::int64_t num_of(const Program& program, const std::vector<std::int64_t>& operations,
                    const Group& group, OpKind kind, std::int64_t peer_rank, std::int64_t tag) {
  std::int64_t count = 0;
  for (const std::int64_t i : operations) {
    const Operation& op = program.operations[static_cast<std::size_t>(i)];
    if (op.group < 0 || op.kind != kind) {
      continue;
    }
    const Group& other = program.groups[static_cast<std::size_t>(op.group)];
    const bool is_pair = kind == OpKind::kSend || kind == OpKind::kReceive;
    const bool is_same =
        is_pair ? other.ranks[static_cast<std::size_t>(op.attributes.peer)] == peer_rank &&
                      op.attributes.tag == tag
                : other.kind == group.kind && other.ranks == group.ranks;
    count += is_same ? 1 : 0;
  }
  return count;
}

// A rank that the operation waits for and that has not come to it; nothing if it waits for nobody.
std::optional<std::int64_t> held_up_by(std::int64_t rank, const std::vector<Position>& positions,
                                       const std::vector<Program>& programs) {
  const Position& here = positions[static_cast<std::size_t>(rank)];
  const Program& program = programs[static_cast<std::size_t>(rank)];
  if (here.phase != RunPhase::kSteps || here.operation < 0 ||
      here.operation >= std::ssize(program.operations)) {
    return std::nullopt;
  }
  const Operation& op = program.operations[static_cast<std::size_t>(here.operation)];
  if (!is_communication(op.kind) || op.group < 0) {
    return std::nullopt;
  }
  const Group& group = program.groups[static_cast<std::size_t>(op.group)];
  const bool is_pair = op.kind == OpKind::kSend || op.kind == OpKind::kReceive;
  const OpKind theirs = op.kind == OpKind::kSend      ? OpKind::kReceive
                        : op.kind == OpKind::kReceive ? OpKind::kSend
                                                      : op.kind;
  const std::int64_t peer =
      is_pair ? group.ranks[static_cast<std::size_t>(op.attributes.peer)] : -1;
  const std::int64_t mine = num_of(program, launched(program, here.operation, Own::kExcluded),
                                   group, op.kind, peer, op.attributes.tag);
  for (const std::int64_t other : is_pair ? std::vector<std::int64_t>{peer} : group.ranks) {
    const Position& there = positions[static_cast<std::size_t>(other)];
    const Program& program_there = programs[static_cast<std::size_t>(other)];
    const bool is_behind =
        there.step < here.step ||
        (there.step == here.step &&
         num_of(program_there, launched(program_there, there.operation, Own::kIncluded), group,
                theirs, rank, op.attributes.tag) <= mine);
    // One that reports has all steps behind it.
    if (other != rank && there.phase == RunPhase::kSteps && is_behind) {
      return other;
    }
  }
  return std::nullopt;
}

}  // namespace

std::int64_t stuck_rank(const std::vector<Position>& positions, const ProgramOf& program_of) {
  const auto stopped = std::ranges::find_if(positions, &Position::is_stopped);
  if (stopped != positions.end()) {
    return stopped - positions.begin();
  }
  // In a phase without operations, one that does not wait for the others.
  const auto least = std::ranges::min_element(positions, {}, [](const Position& position) {
    return std::pair(position.phase, position.is_waiting);
  });
  if (least->phase != RunPhase::kSteps) {
    return least - positions.begin();
  }
  std::vector<Program> programs;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    programs.push_back(program_of(static_cast<std::int64_t>(rank)));
  }
  std::set<std::int64_t> seen;
  std::int64_t rank = least - positions.begin();
  while (seen.insert(rank).second) {
    const auto other = held_up_by(rank, positions, programs);
    if (!other) {
      return rank;
    }
    rank = *other;
  }
  return rank;
}

}  // namespace shardplan
