#include "tests/validator/host/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/validator/host/reference_math.h"

namespace shardplan {
namespace {

template <class Visit>
void for_each_head(const ModelSpec& model, const LayerSpec& layer, std::int64_t rows,
                   std::int64_t length, const Visit& visit) {
  const std::int64_t queries_per_key = model.num_heads / model.num_kv_heads;
  for (std::int64_t first_row = 0; first_row < rows; first_row += length) {
    for (std::int64_t head = 0; head < model.num_heads; ++head) {
      visit(HeadView{.first_row = first_row,
                     .length = length,
                     .query_col = head * model.head_dim,
                     .key_col = head / queries_per_key * model.head_dim,
                     .head_dim = model.head_dim,
                     .window = layer.attention_window});
    }
  }
}

// One step: forward keeps what backward reads.
class Step {
 public:
  Step(const ModelSpec& model, const Tensors& tensors, const Batch& batch,
       const ReferenceSettings& settings)
      : model_(model), tensors_(tensors), batch_(batch), settings_(settings) {
    for (const auto& [name, tensor] : tensors) {
      gradients_[name] = zeros(tensor.rows, tensor.cols);
    }
  }

  double forward();
  void backward();
  Tensors take_gradients() { return std::move(gradients_); }

 private:
  struct Expert {
    std::vector<std::int64_t> tokens;
    std::vector<double> weights;
    Matrix x;
    Matrix y;
  };
  struct Layer {
    Matrix x;  // input of the attention norm
    Matrix normed;
    Matrix q, k, v, o;
    Matrix middle;  // input of the FFN norm
    Matrix ffn_normed;
    Matrix probabilities;                            // MoE [T,E]
    std::vector<std::vector<std::int64_t>> choices;  // MoE: topk experts of every token
    std::vector<Expert> experts;
  };

  const Matrix& weight(const std::string& name) const { return tensors_.at(name); }
  Matrix& gradient(const std::string& name) { return gradients_.at(name); }
  std::string prefix(std::int64_t layer) const { return "layers." + std::to_string(layer) + "."; }
  bool is_moe(std::int64_t layer) const {
    return model_.layers[static_cast<std::size_t>(layer)].is_moe;
  }

  Matrix ffn(const std::string& name, const Matrix& x) const;
  Matrix ffn_backward(const std::string& name, const Matrix& dy, const Matrix& x);
  void attention(std::int64_t index, Layer& layer) const;
  Matrix attention_backward(std::int64_t index, const Matrix& dx);
  Matrix moe(std::int64_t index, Layer& layer);
  Matrix moe_backward(std::int64_t index, const Matrix& dy);
  void route(std::int64_t index, Layer& layer) const;
  double aux_loss(const Layer& layer, Matrix* dprobabilities) const;
  double aux_scale() const;
  Matrix logits(const Matrix& x) const;

  const ModelSpec& model_;
  const Tensors& tensors_;
  const Batch& batch_;
  const ReferenceSettings& settings_;
  Tensors gradients_;
  std::vector<Layer> layers_;
  Matrix last_;  // input of the final norm
};

Matrix Step::ffn(const std::string& name, const Matrix& x) const {
  Matrix gate = product(x, weight(name + "gate"));
  const Matrix up = product(x, weight(name + "up"));
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    gate.values[i] *= sigmoid(gate.values[i]) * up.values[i];
  }
  return product(gate, weight(name + "down"));
}

Matrix Step::ffn_backward(const std::string& name, const Matrix& dy, const Matrix& x) {
  Matrix gate = product(x, weight(name + "gate"));
  Matrix up = product(x, weight(name + "up"));
  Matrix inner = up;
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    inner.values[i] *= gate.values[i] * sigmoid(gate.values[i]);
  }
  const Matrix dinner = product_backward(dy, inner, weight(name + "down"), gradient(name + "down"));
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    const double g = gate.values[i];
    const double s = sigmoid(g);
    gate.values[i] = dinner.values[i] * up.values[i] * s * (1 + g * (1 - s));
    up.values[i] = dinner.values[i] * g * s;
  }
  Matrix dx = product_backward(gate, x, weight(name + "gate"), gradient(name + "gate"));
  add_to(dx, product_backward(up, x, weight(name + "up"), gradient(name + "up")));
  return dx;
}

void Step::attention(std::int64_t index, Layer& layer) const {
  const std::string name = prefix(index) + "attention.";
  layer.normed = rms_norm(layer.x, weight(name + "norm"), settings_.rms_epsilon);
  layer.q = product(layer.normed, weight(name + "q"));
  layer.k = product(layer.normed, weight(name + "k"));
  layer.v = product(layer.normed, weight(name + "v"));
  rotate(layer.q, model_.head_dim, batch_.sequence_length, settings_.rope_theta, 1);
  rotate(layer.k, model_.head_dim, batch_.sequence_length, settings_.rope_theta, 1);
  layer.o = zeros(layer.q.rows, layer.q.cols);
  for_each_head(model_, model_.layers[static_cast<std::size_t>(index)], layer.q.rows,
                batch_.sequence_length,
                [&](const HeadView& head) { attend(head, layer.q, layer.k, layer.v, layer.o); });
  layer.middle = layer.x;
  add_to(layer.middle, product(layer.o, weight(name + "o")));
}

// dx is the gradient behind the residual addition; returns the gradient before it.
Matrix Step::attention_backward(std::int64_t index, const Matrix& dx) {
  const std::string name = prefix(index) + "attention.";
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const Matrix dout = product_backward(dx, layer.o, weight(name + "o"), gradient(name + "o"));
  AttentionGradient inner{.q = zeros(layer.q.rows, layer.q.cols),
                          .k = zeros(layer.k.rows, layer.k.cols),
                          .v = zeros(layer.v.rows, layer.v.cols)};
  for_each_head(
      model_, model_.layers[static_cast<std::size_t>(index)], layer.q.rows, batch_.sequence_length,
      [&](const HeadView& head) { attend_backward(head, dout, layer.q, layer.k, layer.v, inner); });
  rotate(inner.q, model_.head_dim, batch_.sequence_length, settings_.rope_theta, -1);
  rotate(inner.k, model_.head_dim, batch_.sequence_length, settings_.rope_theta, -1);
  Matrix dnormed =
      product_backward(inner.q, layer.normed, weight(name + "q"), gradient(name + "q"));
  add_to(dnormed,
         product_backward(inner.k, layer.normed, weight(name + "k"), gradient(name + "k")));
  add_to(dnormed,
         product_backward(inner.v, layer.normed, weight(name + "v"), gradient(name + "v")));
  Matrix before = dx;
  add_to(before, rms_norm_backward(dnormed, layer.x, weight(name + "norm"), settings_.rms_epsilon,
                                   gradient(name + "norm")));
  return before;
}

void Step::route(std::int64_t index, Layer& layer) const {
  layer.probabilities = product(layer.ffn_normed, weight(prefix(index) + "router"));
  const std::int64_t num_experts = model_.moe.num_experts;
  layer.experts.resize(static_cast<std::size_t>(num_experts));
  for (std::int64_t i = 0; i < layer.probabilities.rows; ++i) {
    double* row = &at(layer.probabilities, i, 0);
    const double top = *std::max_element(row, row + num_experts);
    double sum = 0;
    for (std::int64_t e = 0; e < num_experts; ++e) {
      row[e] = std::exp(row[e] - top);
      sum += row[e];
    }
    for (std::int64_t e = 0; e < num_experts; ++e) { row[e] /= sum; }
    // The topk largest; of equal ones the lower expert first.
    std::vector<std::int64_t> order(static_cast<std::size_t>(num_experts));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    if (settings_.chooses_in_turn) {
      const std::int64_t position = i % batch_.sequence_length;
      // clang 14: no ranges::rotate
      std::rotate(order.begin(), order.begin() + position * model_.moe.topk % num_experts,
                  order.end());
    } else {
      std::ranges::stable_sort(order,
                               [&](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
    }
    order.resize(static_cast<std::size_t>(model_.moe.topk));
    double chosen = 0;
    for (const std::int64_t e : order) { chosen += row[e]; }
    for (const std::int64_t e : order) {
      Expert& expert = layer.experts[static_cast<std::size_t>(e)];
      expert.tokens.push_back(i);
      expert.weights.push_back(row[e] / chosen);
    }
    layer.choices.push_back(order);
  }
}

Matrix Step::moe(std::int64_t index, Layer& layer) {
  route(index, layer);
  Matrix y = zeros(layer.ffn_normed.rows, layer.ffn_normed.cols);
  for (std::size_t e = 0; e < layer.experts.size(); ++e) {
    Expert& expert = layer.experts[e];
    expert.x = rows_of(layer.ffn_normed, expert.tokens);
    expert.y = ffn(prefix(index) + "experts." + std::to_string(e) + ".", expert.x);
    for (std::size_t n = 0; n < expert.tokens.size(); ++n) {
      for (std::int64_t j = 0; j < y.cols; ++j) {
        at(y, expert.tokens[n], j) +=
            expert.weights[n] * at(expert.y, static_cast<std::int64_t>(n), j);
      }
    }
  }
  if (model_.moe.shared_ffn > 0) {
    add_to(y, ffn(prefix(index) + "shared.", layer.ffn_normed));
  }
  return y;
}

double Step::aux_scale() const {
  const auto num_moe = std::ranges::count(model_.layers, true, &LayerSpec::is_moe);
  const double sequences =
      static_cast<double>(batch_.tokens.size()) / static_cast<double>(batch_.sequence_length);
  return settings_.aux_coefficient / (static_cast<double>(num_moe) * sequences);
}

// E * sum_e f_e * P_e summed over the sequences; adds its gradient where asked.
double Step::aux_loss(const Layer& layer, Matrix* dprobabilities) const {
  const std::int64_t length = batch_.sequence_length;
  const std::int64_t num_experts = model_.moe.num_experts;
  double loss = 0;
  for (std::int64_t first = 0; first < layer.probabilities.rows; first += length) {
    std::vector<double> share(static_cast<std::size_t>(num_experts), 0.0);
    for (std::int64_t i = first; i < first + length; ++i) {
      for (const std::int64_t e : layer.choices[static_cast<std::size_t>(i)]) {
        share[static_cast<std::size_t>(e)] += 1 / static_cast<double>(length * model_.moe.topk);
      }
    }
    for (std::int64_t i = first; i < first + length; ++i) {
      for (std::int64_t e = 0; e < num_experts; ++e) {
        const double slope = static_cast<double>(num_experts) * share[static_cast<std::size_t>(e)] /
                             static_cast<double>(length);
        loss += slope * at(layer.probabilities, i, e);
        if (dprobabilities != nullptr) {
          at(*dprobabilities, i, e) += aux_scale() * slope;
        }
      }
    }
  }
  return loss;
}

Matrix Step::moe_backward(std::int64_t index, const Matrix& dy) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  const std::int64_t num_experts = model_.moe.num_experts;
  Matrix dx = zeros(dy.rows, dy.cols);
  Matrix dprobabilities = zeros(dy.rows, num_experts);
  Matrix dweights = zeros(dy.rows, num_experts);
  for (std::size_t e = 0; e < layer.experts.size(); ++e) {
    const Expert& expert = layer.experts[e];
    Matrix dexpert = rows_of(dy, expert.tokens);
    for (std::size_t n = 0; n < expert.tokens.size(); ++n) {
      const auto row = static_cast<std::int64_t>(n);
      for (std::int64_t j = 0; j < dy.cols; ++j) {
        at(dweights, expert.tokens[n], static_cast<std::int64_t>(e)) +=
            at(dexpert, row, j) * at(expert.y, row, j);
        at(dexpert, row, j) *= expert.weights[n];
      }
    }
    const Matrix back =
        ffn_backward(prefix(index) + "experts." + std::to_string(e) + ".", dexpert, expert.x);
    for (std::size_t n = 0; n < expert.tokens.size(); ++n) {
      for (std::int64_t j = 0; j < dx.cols; ++j) {
        at(dx, expert.tokens[n], j) += at(back, static_cast<std::int64_t>(n), j);
      }
    }
  }
  // weight_e = p_e / sum of the chosen p
  for (std::int64_t i = 0; i < dy.rows; ++i) {
    double chosen = 0;
    double mean = 0;
    for (const std::int64_t e : layer.choices[static_cast<std::size_t>(i)]) {
      chosen += at(layer.probabilities, i, e);
      mean += at(dweights, i, e) * at(layer.probabilities, i, e);
    }
    for (const std::int64_t e : layer.choices[static_cast<std::size_t>(i)]) {
      at(dprobabilities, i, e) += (at(dweights, i, e) - mean / chosen) / chosen;
    }
  }
  aux_loss(layer, &dprobabilities);
  Matrix dlogits = zeros(dy.rows, num_experts);
  for (std::int64_t i = 0; i < dy.rows; ++i) {
    double mean = 0;
    for (std::int64_t e = 0; e < num_experts; ++e) {
      mean += at(dprobabilities, i, e) * at(layer.probabilities, i, e);
    }
    for (std::int64_t e = 0; e < num_experts; ++e) {
      at(dlogits, i, e) = at(layer.probabilities, i, e) * (at(dprobabilities, i, e) - mean);
    }
  }
  add_to(dx, product_backward(dlogits, layer.ffn_normed, weight(prefix(index) + "router"),
                              gradient(prefix(index) + "router")));
  if (model_.moe.shared_ffn > 0) {
    add_to(dx, ffn_backward(prefix(index) + "shared.", dy, layer.ffn_normed));
  }
  return dx;
}

// Logits with the head, or with the transposed embedding when tied.
Matrix Step::logits(const Matrix& x) const {
  if (!model_.tied_embeddings) {
    return product(x, weight("head"));
  }
  const Matrix& table = weight("embedding");
  Matrix transposed = zeros(table.cols, table.rows);
  for (std::int64_t i = 0; i < table.rows; ++i) {
    for (std::int64_t j = 0; j < table.cols; ++j) { at(transposed, j, i) = at(table, i, j); }
  }
  return product(x, transposed);
}

double Step::forward() {
  Matrix x = rows_of(weight("embedding"), batch_.tokens);
  double aux = 0;
  for (std::int64_t index = 0; index < model_.num_layers(); ++index) {
    Layer layer;
    layer.x = x;
    attention(index, layer);
    const Matrix& norm = weight(prefix(index) + "ffn.norm");
    layer.ffn_normed = rms_norm(layer.middle, norm, settings_.rms_epsilon);
    x = layer.middle;
    add_to(x, is_moe(index) ? moe(index, layer) : ffn(prefix(index) + "ffn.", layer.ffn_normed));
    aux += is_moe(index) ? aux_scale() * aux_loss(layer, nullptr) : 0;
    layers_.push_back(std::move(layer));
  }
  last_ = x;
  const Matrix scores = logits(rms_norm(last_, weight("final_norm"), settings_.rms_epsilon));
  double loss = 0;
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    const double* row = &scores.values[static_cast<std::size_t>(i * scores.cols)];
    const double top = *std::max_element(row, row + scores.cols);
    double sum = 0;
    for (std::int64_t j = 0; j < scores.cols; ++j) { sum += std::exp(row[j] - top); }
    loss += top + std::log(sum) - row[batch_.targets[static_cast<std::size_t>(i)]];
  }
  return loss / static_cast<double>(scores.rows) + aux;
}

void Step::backward() {
  const Matrix normed = rms_norm(last_, weight("final_norm"), settings_.rms_epsilon);
  Matrix scores = logits(normed);
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    double* row = &at(scores, i, 0);
    const double top = *std::max_element(row, row + scores.cols);
    double sum = 0;
    for (std::int64_t j = 0; j < scores.cols; ++j) { sum += std::exp(row[j] - top); }
    for (std::int64_t j = 0; j < scores.cols; ++j) {
      const double hit = j == batch_.targets[static_cast<std::size_t>(i)] ? 1 : 0;
      row[j] = (std::exp(row[j] - top) / sum - hit) / static_cast<double>(scores.rows);
    }
  }
  Matrix dnormed;
  if (model_.tied_embeddings) {
    dnormed = product(scores, weight("embedding"));
    Matrix& table = gradient("embedding");
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      for (std::int64_t j = 0; j < scores.cols; ++j) {
        for (std::int64_t d = 0; d < table.cols; ++d) {
          at(table, j, d) += at(scores, i, j) * at(normed, i, d);
        }
      }
    }
  } else {
    dnormed = product_backward(scores, normed, weight("head"), gradient("head"));
  }
  Matrix dx = rms_norm_backward(dnormed, last_, weight("final_norm"), settings_.rms_epsilon,
                                gradient("final_norm"));
  for (std::int64_t index = model_.num_layers() - 1; index >= 0; --index) {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    const Matrix dffn = is_moe(index) ? moe_backward(index, dx)
                                      : ffn_backward(prefix(index) + "ffn.", dx, layer.ffn_normed);
    const std::string norm = prefix(index) + "ffn.norm";
    add_to(dx, rms_norm_backward(dffn, layer.middle, weight(norm), settings_.rms_epsilon,
                                 gradient(norm)));
    dx = attention_backward(index, dx);
  }
  Matrix& table = gradient("embedding");
  for (std::int64_t i = 0; i < dx.rows; ++i) {
    for (std::int64_t j = 0; j < dx.cols; ++j) {
      at(table, batch_.tokens[static_cast<std::size_t>(i)], j) += at(dx, i, j);
    }
  }
}

}  // namespace

double reference_loss(const ModelSpec& model, const Tensors& tensors, const Batch& batch,
                      const ReferenceSettings& settings) {
  return Step(model, tensors, batch, settings).forward();
}

ReferenceStep reference_step(const ModelSpec& model, const Tensors& tensors, const Batch& batch,
                             const ReferenceSettings& settings) {
  Step step(model, tensors, batch, settings);
  ReferenceStep result;
  result.loss = step.forward();
  step.backward();
  result.gradients = step.take_gradients();
  return result;
}

}  // namespace shardplan
