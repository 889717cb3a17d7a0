// SPDX-License-Identifier: Apache-2.0
// What one process of `accelerate verify` recorded about its training steps:
// sums instead of tensors, so that a record stays small.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"

namespace accelerate::verify {

/// The runs of `accelerate verify`, and the folders of their records.
inline constexpr const char* kFirstRun = "run";
inline constexpr const char* kReferenceRun = "reference";
inline constexpr const char* kSameBatchRun = "same_batch";

/// Sums over the elements of a tensor, computed in fp64. They are linear, so
/// the sketches of the shards of a tensor add up to that of the whole tensor,
/// and the difference of two sketches belongs to the difference of the tensors.
struct Sketch {
  static constexpr size_t kNumSums = 8;
  /// The sum of squares. Not linear, but shards still add up.
  double squares = 0;
  /// Sums with signs that look random and depend on the index of an element.
  std::array<double, kNumSums> sums = {};

  ACCELERATE_INTERNAL Sketch& operator+=(const Sketch& other);
  bool operator==(const Sketch&) const = default;
};

/// An estimate of the norm of the difference of two tensors.
ACCELERATE_INTERNAL double distance(const Sketch& a, const Sketch& b);

/// A named tensor of the model, or its gradient.
struct TensorRecord {
  std::string name;
  std::int64_t num_elements = 0;
  std::int64_t num_dimensions = 0;
  /// Whether each rank has only a shard of it.
  bool is_divided = false;
  /// False for buffers and frozen parameters.
  bool is_trained = false;
  /// The distance between 1 and the next number in the tensor's dtype.
  double epsilon = 0;
  Sketch sketch = {};

  bool operator==(const TensorRecord&) const = default;
};

/// A tensor of a batch.
struct LeafRecord {
  std::int64_t num_elements = 0;
  double sum = 0;
  /// Whether it contains the label -100, which losses ignore.
  bool has_ignored = false;
  /// Whether it contains only zeros and ones, like a mask.
  bool is_mask = false;
  /// The number of elements that count: not -100, and not masked out.
  std::int64_t num_valid = 0;
  /// The number of elements that are not 0, for integers.
  std::int64_t num_nonzero = 0;

  bool operator==(const LeafRecord&) const = default;
};

/// A backward pass, and the batches that a loader returned since the previous
/// backward pass.
struct MicroBatchRecord {
  double loss = 0;
  /// The weight passed to `backward`. 1 without one.
  double weight = 1;
  std::int64_t num_samples = 0;
  std::vector<LeafRecord> leaves = {};

  bool operator==(const MicroBatchRecord&) const = default;
};

/// One update of the weights.
struct UpdateRecord {
  /// The index of the optimizer. -1 if the weights changed without a prepared
  /// one.
  int optimizer = 0;
  std::vector<double> learning_rates = {};
  std::vector<MicroBatchRecord> batches = {};
  std::vector<TensorRecord> gradients = {};
  /// All parameters after the update, and frozen ones.
  std::vector<TensorRecord> parameters = {};
  /// The buffers when the first forward pass of the update began.
  std::vector<TensorRecord> buffers = {};
  /// Buffers that forward passes of the update have changed.
  std::vector<std::string> changed_buffers = {};
  /// The peak memory of the process in bytes, on its device if that is not the
  /// CPU.
  std::int64_t peak_memory = 0;

  bool operator==(const UpdateRecord&) const = default;
};

/// Why the steps cannot be compared with those of one process.
struct Obstacle {
  /// Whether the obstacle matters only if the steps disagree.
  bool only_excuses = true;
  std::string text;

  bool operator==(const Obstacle&) const = default;
};

struct ProcessRecord {
  int rank = 0;
  int num_ranks = 1;
  /// The number of ranks that train on different batches.
  int num_data_ranks = 1;
  /// The parameters when the first forward pass began.
  std::vector<TensorRecord> initial = {};
  std::vector<UpdateRecord> updates = {};
  /// Mistakes that the library found itself, as messages.
  std::vector<std::string> problems = {};
  std::vector<Obstacle> obstacles = {};
  /// Hashes of the orders of samples, one for each loop over a loader.
  std::vector<std::string> orders = {};
  /// The outputs of the modules of the model, in the order of the calls. They
  /// are recorded only if all ranks have the same batches.
  std::vector<TensorRecord> outputs = {};
  /// Whether an Accelerator was created.
  bool is_begun = false;
};

/// Appends events to a file, one line each, so that the record of a process
/// that fails is complete up to the failure. Throws `SystemError`.
class ACCELERATE_INTERNAL RecordWriter {
 public:
  explicit RecordWriter(const std::filesystem::path& file);
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  void begin(int rank, int num_ranks, int num_data_ranks);
  void add_initial(const std::vector<TensorRecord>& tensors);
  void add_update(const UpdateRecord& update);
  /// Writes each text once.
  void add_problem(const std::string& text);
  void add_obstacle(const Obstacle& obstacle);
  void add_order(const std::string& hash);
  void add_output(const TensorRecord& output);

 private:
  void write(const std::string& line);

  std::filesystem::path path_;
  int file_;
  std::vector<std::string> known_;
};

/// Throws `DataError` on damaged files, `SystemError` if the file is missing.
ACCELERATE_INTERNAL ProcessRecord
read_process_record(const std::filesystem::path& file);

/// The file of a rank in the folder of a run.
ACCELERATE_INTERNAL std::filesystem::path record_file(
    const std::filesystem::path& folder,
    int rank);

} // namespace accelerate::verify
