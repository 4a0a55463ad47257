#include "validator/supervise/run_request.h"

#include "validator/supervise/message.h"

namespace shardplan {

std::string text_of(const RunRequest& request) {
  Message message;
  message.add("world_size", request.world_size);
  message.add("simulated_rank", request.simulated_rank.value_or(-1));
  message.add("warmup", request.warmup);
  message.add("steps", request.steps);
  message.add("learning_rate", std::vector<double>{request.learning_rate});
  message.add("seed", static_cast<std::int64_t>(request.seed));
  message.add("float", std::int64_t{request.precision == RunPrecision::kFloat});
  message.add("reference", std::int64_t{request.weights == InitialWeights::kReference});
  message.add("memory_limit", request.memory_limit_bytes.value_or(-1));
  if (request.is_traced) {
    message.add("traced", std::int64_t{1});
  }
  message.add("plan", request.plan);
  return message.text();
}

RunRequest request_of(const std::string& text) {
  const Message message(text);
  const auto unless_negative = [&](std::string_view name) {
    const std::int64_t value = message.integer(name);
    return value < 0 ? std::nullopt : std::optional<std::int64_t>(value);
  };
  return {
      .plan = message.word("plan"),
      .world_size = message.integer("world_size"),
      .simulated_rank = unless_negative("simulated_rank"),
      .warmup = message.integer("warmup"),
      .steps = message.integer("steps"),
      .learning_rate = message.number("learning_rate"),
      .seed = static_cast<std::uint64_t>(message.integer("seed")),
      .precision = message.integer("float") != 0 ? RunPrecision::kFloat : RunPrecision::kAsPlanned,
      .weights =
          message.integer("reference") != 0 ? InitialWeights::kReference : InitialWeights::kFast,
      .memory_limit_bytes = unless_negative("memory_limit"),
      .is_traced = message.has("traced")};
}

}  // namespace shardplan
