#include "validator/supervise/outcome.h"

#include "validator/supervise/message.h"

namespace shardplan {
namespace {

struct GroupName {
  GroupKind kind;
  std::string_view name;
};
constexpr std::array<GroupName, 15> kGroupNames = {{
    {.kind = GroupKind::kTp, .name = "tp"},
    {.kind = GroupKind::kCp, .name = "cp"},
    {.kind = GroupKind::kDp, .name = "dp"},
    {.kind = GroupKind::kPp, .name = "pp"},
    {.kind = GroupKind::kDpCp, .name = "dp_cp"},
    {.kind = GroupKind::kTpCp, .name = "tp_cp"},
    {.kind = GroupKind::kEmbedding, .name = "embedding"},
    {.kind = GroupKind::kEp, .name = "ep"},
    {.kind = GroupKind::kEtp, .name = "etp"},
    {.kind = GroupKind::kExperts, .name = "experts"},
    {.kind = GroupKind::kExpertDp, .name = "expert_dp"},
    {.kind = GroupKind::kDenseShard, .name = "dense_shard"},
    {.kind = GroupKind::kDenseReplica, .name = "dense_replica"},
    {.kind = GroupKind::kExpertShard, .name = "expert_shard"},
    {.kind = GroupKind::kExpertReplica, .name = "expert_replica"},
}};
static_assert(kGroupNames.size() == kGroupKinds.size());

struct MemoryField {
  std::string_view name;
  std::int64_t RankMemory::*member;
};
constexpr auto kMemoryFields = std::to_array<MemoryField>({
    {.name = "persistent_arena", .member = &RankMemory::persistent_arena},
    {.name = "dynamic_arena", .member = &RankMemory::dynamic_arena},
    {.name = "context", .member = &RankMemory::context},
    {.name = "libraries", .member = &RankMemory::libraries},
    {.name = "communicators", .member = &RankMemory::communicators},
    {.name = "growth", .member = &RankMemory::growth},
    {.name = "unattributed", .member = &RankMemory::unattributed},
    {.name = "device_used", .member = &RankMemory::device_used},
    {.name = "device_total", .member = &RankMemory::device_total},
});
constexpr std::string_view kGroupPrefix = "group.";

GroupKind group_named(const std::string& name) {
  for (const GroupName& row : kGroupNames) {
    if (row.name == name) {
      return row.kind;
    }
  }
  throw std::invalid_argument("no kind of group is called '" + name + "'");
}

}  // namespace

std::string_view name_of(GroupKind kind) {
  for (const GroupName& row : kGroupNames) {
    if (row.kind == kind) {
      return row.name;
    }
  }
  throw std::logic_error("a kind of group without a name");
}

std::string text_of(const RankResult& result) {
  Message message;
  message.add("losses", result.losses);
  message.add("gradient_norms", result.gradient_norms);
  message.add("step_times_s", result.step_times_s);
  message.add("device", result.device);
  message.add("machine", result.machine);
  message.add("attention", result.attention);
  message.add("products", result.products);
  for (const MemoryField& field : kMemoryFields) {
    message.add(field.name, result.memory.*field.member);
  }
  for (const GroupBytes& group : result.memory.groups) {
    message.add(std::string(kGroupPrefix) + std::string(name_of(group.kind)), group.bytes);
  }
  if (result.times) {
    message.add("times", text_of(*result.times));
  }
  return message.text();
}

RankResult result_of(const std::string& text) {
  const Message message(text);
  RankResult result;
  result.losses = message.numbers("losses");
  result.gradient_norms = message.numbers("gradient_norms");
  result.step_times_s = message.numbers("step_times_s");
  result.device = message.integer("device");
  result.machine = message.word("machine");
  result.attention = message.word("attention");
  result.products = message.word("products");
  for (const MemoryField& field : kMemoryFields) {
    result.memory.*field.member = message.integer(field.name);
  }
  for (const auto& [name, value] : message.fields()) {
    if (name.starts_with(kGroupPrefix)) {
      result.memory.groups.push_back(
          {.kind = group_named(name.substr(kGroupPrefix.size())), .bytes = message.integer(name)});
    }
  }
  if (message.has("times")) {
    result.times = operation_times_of(message.word("times"));
  }
  return result;
}

std::string text_of(const Failure& failure) {
  Message message;
  message.add("status", std::string(name_of(failure.status)));
  message.add("process", std::int64_t{failure.process == ProcessState::kKept});
  message.add("echo", std::int64_t{failure.is_echo});
  if (failure.requested_bytes) {
    message.add("requested", *failure.requested_bytes);
  }
  if (failure.free_bytes) {
    message.add("free", *failure.free_bytes);
  }
  if (failure.needed_factor) {
    message.add("needed_factor", std::vector<double>{*failure.needed_factor});
  }
  message.add("reason", failure.reason);
  return message.text();
}

Failure failure_of(const std::string& text) {
  const Message message(text);
  Failure failure;
  const std::string& status = message.word("status");
  const auto known = value_of<RunStatus>(status);
  if (!known) {
    throw std::invalid_argument("no status is called '" + status + "'");
  }
  failure.status = *known;
  failure.process = message.integer("process") != 0 ? ProcessState::kKept : ProcessState::kLost;
  failure.is_echo = message.integer("echo") != 0;
  if (message.has("requested")) {
    failure.requested_bytes = message.integer("requested");
  }
  if (message.has("free")) {
    failure.free_bytes = message.integer("free");
  }
  if (message.has("needed_factor")) {
    failure.needed_factor = message.number("needed_factor");
  }
  failure.reason = message.word("reason");
  return failure;
}

}  // namespace shardplan
