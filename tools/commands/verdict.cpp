#include "tools/commands/verdict.h"

#include "tools/report/text.h"

namespace shardplan {

std::string verdict_words(const Judgement& judged) {
  switch (judged.verdict) {
    case MemoryVerdict::kFits: return "FITS";
    case MemoryVerdict::kOver: return "OVER " + shortest(100 * judged.rule.threshold) + " %";
    case MemoryVerdict::kTight: return "TIGHT";
    case MemoryVerdict::kDoesNotFit: return "DOES NOT FIT";
  }
  return "";
}

std::string verdict_words(const Prediction& prediction) {
  switch (prediction.status) {
    case PredictedStatus::kInvalid: return "INVALID";
    case PredictedStatus::kUnsupported: return "UNSUPPORTED";
    case PredictedStatus::kError: return "ERROR";
    default: return verdict_words(prediction.judged.value());
  }
}

std::string_view verdict_name(const Prediction& prediction) {
  return prediction.judged ? name_of(prediction.judged->verdict) : name_of(prediction.status);
}

Colour verdict_colour(MemoryVerdict verdict) {
  switch (verdict) {
    case MemoryVerdict::kFits: return Colour::kGreen;
    case MemoryVerdict::kOver:
    case MemoryVerdict::kTight: return Colour::kYellow;
    case MemoryVerdict::kDoesNotFit: return Colour::kRed;
  }
  return Colour::kRed;
}

Colour verdict_colour(const Prediction& prediction) {
  return prediction.judged ? verdict_colour(prediction.judged->verdict) : Colour::kRed;
}

bool is_negative(const Prediction& prediction) {
  return is_negative(prediction.status) || (prediction.judged && prediction.judged->rule.is_asked &&
                                            !prediction.judged->check.kept());
}

std::optional<MemoryVerdict> fails_on(const Options& options) {
  return given(options, "fail-on") ? value_of<MemoryVerdict>(text_or(options, "fail-on", ""))
                                   : std::nullopt;
}

ExitCode exit_code_of(const Prediction& prediction, std::optional<MemoryVerdict> fails_on) {
  if (prediction.status == PredictedStatus::kUnsupported) {
    return ExitCode::kInput;
  }
  const bool is_as_bad = fails_on && prediction.judged && prediction.judged->verdict >= *fails_on;
  return is_negative(prediction) || is_as_bad ? ExitCode::kNegative : ExitCode::kOk;
}

}  // namespace shardplan
