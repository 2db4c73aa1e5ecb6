// Types of fovea.js. TypeScript finds them where both files lie in one folder.

/** Bytes of an encoded image, e.g. a JPEG. */
export type Image = Blob | ArrayBuffer | ArrayBufferView;

/** Options of one request; the server has a default for each that is missing. */
export interface PredictOptions
  extends Omit<PredictJson, "images" | "classes" | "tile"> {
  /** names or ids of the classes to keep; in text, commas separate them */
  classes?: string | (string | number)[] | null;
  /** cut the image: the side of a tile in pixels, or 3x2 tiles */
  tile?: string | number | null;
  /** version of the model; by default the newest */
  version?: string | number | null;
  /** time after which the server gives the request up */
  timeoutMs?: number;
  signal?: AbortSignal;
  /** in browsers, called with the share of the body that is sent, from 0 to 1 */
  onUpload?: (share: number) => void;
}

/** A request that failed. */
export class FoveaError extends Error {
  constructor(
    message: string,
    about: { status?: number; code: string; hint?: string; retryAfterS?: number | null },
  );
  /** of HTTP; 0 where the server could not be reached */
  readonly status: number;
  /** for programs */
  readonly code: string;
  /** what to do; may be empty */
  readonly hint: string;
  readonly retryAfterS: number | null;
}

export class Fovea {
  /** A server at an address, the key that it asks for, and headers to send with each request. */
  constructor(url: string | URL, about?: { apiKey?: string; headers?: Record<string, string> });
  readonly url: string;
  readonly headers: Record<string, string>;
  /** Find what is on one image, or on each of several. */
  predict(model: string, image: Image | Image[], options?: PredictOptions): Promise<PredictAnswer>;
  /** Draw what is found into the image; a JPEG. */
  annotate(model: string, image: Image, options?: PredictOptions): Promise<Blob>;
  /** All models, also those that are not ready. */
  models(): Promise<ModelSummary[]>;
  /** One model with labels, inputs, outputs and engine card. */
  model(name: string, version?: string | number): Promise<Model>;
  /** Counters of a model: images, time in each stage, how long requests took. */
  statistics(name: string): Promise<ModelStatistics>;
  /** True if the server, or the named model, takes requests. */
  ready(name?: string): Promise<boolean>;
}

// Below: `python -m tools.typescript`, from the schemas of /openapi.json.

/** A JSON request. */
export interface PredictJson {
  images: ImageSource[];
  /** least score of an object; a classifier has top_k instead; default 0.25 */
  conf?: number;
  /** overlap above which the weaker of two boxes goes; default 0.7 */
  iou?: number;
  /** classes to keep, default all: text is a name, a number an id */
  classes?: (number | string)[] | null;
  /** most detections an image; default 300 */
  max_det?: number;
  /** of a classifier: most classes an image, whatever their score; default 5 */
  top_k?: number;
  /** suppress across classes; default false */
  agnostic?: boolean;
  /** form of masks and of classes: COCO's RLE or polygons, a PNG file, or none; saliency and depth are PNG files, or none; default "rle" */
  mask?: "rle" | "polygon" | "png" | "none";
  /** cut the image: the side of a tile in pixels, or 3x2 tiles */
  tile?: string | null;
  /** share of a tile that the next one repeats; default 0.2 */
  overlap?: number;
}

/** Answers in the order of the images; a bad image among good ones fails only itself. */
export interface PredictAnswer {
  model: string;
  version: string;
  /** says which field each image has: detections, classes, semantic, ... */
  task: "detect" | "segment" | "pose" | "obb" | "text" | "classify" | "semantic" | "saliency" | "depth" | "tensors";
  images: ImageAnswer[];
  timing_ms: TimingMs;
}

/** One model of the list. Fields that are unknown until the model is ready are null. */
export interface ModelSummary {
  name: string;
  /** the version that this is about: the newest that can answer, or the newest */
  version: string | null;
  ready: boolean;
  /** why that version is not ready; null where it is */
  reason: string | null;
  versions: ModelVersion[];
  /** "detect", or "tensors" where the outputs are not decoded */
  task: string | null;
  accepts_images: boolean;
  /** also null for an ensemble */
  backend: string | null;
  /** also null for an ensemble */
  precision: string | null;
  /** 0 where the model has no labels */
  label_count: number;
}

/** All that is known of one version of a model. */
export interface Model {
  name: string;
  /** the version that this is about: the newest that can answer, or the newest */
  version: string | null;
  ready: boolean;
  /** why that version is not ready; null where it is */
  reason: string | null;
  versions: ModelVersion[];
  /** "detect", or "tensors" where the outputs are not decoded */
  task: string | null;
  accepts_images: boolean;
  /** also null for an ensemble */
  backend: string | null;
  /** also null for an ensemble */
  precision: string | null;
  /** 0 where the model has no labels */
  label_count: number;
  /** 0 where the model has no batch dimension */
  max_batch_size: number;
  inputs: TensorMetadata[];
  outputs: TensorMetadata[];
  /** how an image becomes the input; null where it takes no images */
  preprocess: PreprocessSpec | null;
  /** class names by id */
  labels: string[] | null;
  /** the engine as `fovea build` made it */
  card: EngineCard | null;
  /** why there is no card */
  card_reason: string | null;
}

/** Counters of the versions of a model that are ready, since they were loaded. */
export interface ModelStatistics {
  name: string;
  /** successful requests by the seconds they took, as a histogram of Prometheus: the last, +Inf, counts all since the server started; empty before any */
  durations: Record<string, number>;
  versions: VersionStatistics[];
}

/** An image in a JSON request: exactly one of `data` and `url`. */
export interface ImageSource {
  /** the encoded image, base64 */
  data?: string;
  /** http(s) address (needs `--allow-url`) */
  url?: string;
}

/** One image of an answer: the field that the `task` names, or `error`. */
export interface ImageAnswer {
  /** pixels of the upright image */
  width?: number;
  height?: number;
  /** EXIF, as in the file: 1 to 8 */
  orientation?: number;
  /** best first */
  detections?: Detection[];
  /** top_k, best first */
  classes?: ScoredClass[];
  semantic?: Semantic;
  saliency?: Saliency;
  depth?: Depth;
  /** outputs that are not decoded */
  tensors?: Tensor[];
  /** why there are only tensors */
  reason?: string;
  /** why this image failed */
  error?: ErrorDetail;
}

/** Milliseconds by stage (of the slowest image in each) and in all. */
export interface TimingMs {
  decode: number;
  letterbox: number;
  queue: number;
  infer: number;
  postprocess: number;
  total: number;
}

/** One version of a model. */
export interface ModelVersion {
  version: string;
  state: State;
  ready: boolean;
  /** why it is not ready, or why its last reload failed; null otherwise */
  reason: string | null;
}

/** An input or output of a model. */
export interface TensorMetadata {
  name: string;
  /** as the v2 protocol names it */
  datatype: string;
  /** -1 where any size goes */
  shape: number[];
}

/** Preprocessing of an image to a tensor row. Hashable; its digest goes into the engine card. */
export interface PreprocessSpec {
  height: number;
  width: number;
  fit?: "letterbox" | "stretch" | "center-crop";
  anchor?: "center" | "top-left";
  rounding?: "nearest" | "down" | null;
  unscale?: "sides" | "ratio";
  pad?: number;
  max_scale?: number | null;
  crop_ratio?: number;
  resample?: "linear" | "linear-float" | "antialias" | "lanczos" | "area";
  channels?: "RGB" | "BGR";
  scale?: number;
  mean?: [unknown, unknown, unknown];
  std?: [unknown, unknown, unknown];
  layout?: "NCHW" | "NHWC";
  dtype?: "float32" | "float16" | "uint8" | "int32";
}

/** Everything a server needs to know about an engine before it opens it. */
export interface EngineCard {
  format: 1;
  name: string;
  created: string | null;
  content_key: string;
  backend: string;
  backend_version: string;
  device: string;
  precision: "fp32" | "bf16" | "fp16" | "int8";
  onnx_sha256: string;
  files: Record<string, string>;
  max_batch: number;
  inputs: TensorSpec[];
  outputs: TensorSpec[];
  family: string | null;
  reason: string;
  task: string;
  labels: string[] | null;
  preprocess: PreprocessSpec | null;
  agreement: Agreement | null;
  build_seconds: Record<string, number>;
  metadata: Record<string, string>;
  calibration: Calibration | null;
  accuracy: Record<string, Accuracy | ClassAccuracy | MapAccuracy>;
  tensorrt: Agreement | null;
  judge: string | null;
  builder: BuilderOptions | null;
  gpu: Gpu | null;
  weight_bits: 7 | 8;
  cpu_features: string[];
  candidates: CandidateFigures[];
  goal: "throughput" | "latency" | null;
  refused: string | null;
  head_outputs: string[];
  num_classes: number | null;
  skeleton: Skeleton | null;
  unproven: string[];
  head_candidates: HeadCandidate[];
  preprocess_from: string | null;
  source_preprocess: PreprocessSpec | null;
  head_doubt: string | null;
}

/** Counters of one version, under the names of Triton's statistics extension. */
export interface VersionStatistics {
  version: string;
  /** milliseconds since 1970; 0 for never */
  last_inference: number;
  /** images, or rows of tensors */
  inference_count: number;
  /** calls of the engine */
  execution_count: number;
  /** requests that wait for the engine now */
  pending: number;
  inference_stats: RequestStatistics;
  batch_stats: BatchStatistics[];
}

/** One thing found. */
export interface Detection {
  box: Box;
  score: number;
  class_id: number;
  class_name: string;
  /** of a segmenter */
  mask?: Mask;
  /** of a pose model */
  keypoints?: Keypoint[];
  /** of a model of rotated boxes or of text */
  rotated?: Rotated;
  /** of `rotated`, clockwise; between the second and the third the angle points */
  corners?: [Corner, Corner, Corner, Corner];
}

/** A class of the whole image; the scores of all classes add up to 1. */
export interface ScoredClass {
  class_id: number;
  class_name: string;
  score: number;
}

/** The classes of an image, the largest first. */
export interface Semantic {
  classes: ClassArea[];
  /** with mask=png: an indexed PNG file in base64, its index the class, and 255 a class that the request leaves out; of 16 bits and 65535 with classes of 255 and over */
  png?: string;
}

/** The foreground of an image. */
export interface Saliency {
  /** of the image that is foreground */
  share: number;
  /** a grey PNG file of 8 bits in base64 */
  png?: string;
}

/** The depths of an image. */
export interface Depth {
  min: number;
  max: number;
  /** null: the model's own scale */
  unit: "m" | null;
  /** a grey PNG file of 16 bits in base64 */
  png?: string;
  /** a depth is a level of the file times this */
  scale?: number;
  /** plus this */
  offset?: number;
}

/** A raw output row of a model whose head is not recognised. */
export interface Tensor {
  name: string;
  datatype: string;
  shape: number[];
  data: unknown[];
}

/** A stable word for programs, a sentence for people. */
export interface ErrorDetail {
  code: string;
  message: string;
}

/** The state of a model version, in Triton's terms. */
export type State = "LOADING" | "READY" | "UNLOADING" | "UNAVAILABLE";

/** One input or output of a model. */
export interface TensorSpec {
  name: string;
  dtype: string;
  shape: number[];
}

/** Comparison of the built engine with its source model, run as it is. */
export interface Agreement {
  images: number;
  detections: number;
  box_px: number;
  score: number;
  output_error: number;
  missed?: number;
  extra?: number;
  mean_iou?: number | null;
  score_drift?: number | null;
  quality?: number;
  same_top?: number | null;
  same_order?: number | null;
  images_from?: string | null;
  worst?: WorstImage[];
  overlap?: "IoU" | "mask IoU" | "OKS" | "rotated IoU";
  shared?: number | null;
  replaced?: number;
}

/** Source of an INT8 engine's ranges. */
export interface Calibration {
  method: string;
  images: number;
  images_sha256: string;
  preprocess_sha256: string;
  layers: number;
  kept_float: string[];
  reused: boolean;
  gains: Record<string, number>;
  remarks: string[];
}

/** Accuracy of a detector as average precisions, 0 to 1. */
export interface Accuracy {
  images: number;
  map50_95: number;
  map50: number;
  per_class: Record<string, number>;
  by_size: Record<string, number | null>;
  overlap: "IoU" | "mask IoU" | "OKS" | "rotated IoU";
  box_map50_95: number | null;
  box_map50: number | null;
}

/** Accuracy of a classifier as shares of images, 0 to 1. */
export interface ClassAccuracy {
  images: number;
  top1: number;
  top5: number;
  per_class: Record<string, number>;
}

/** Accuracy of semantic segmentation, 0 to 1, over all labelled pixels. */
export interface MapAccuracy {
  images: number;
  miou: number;
  pixel_accuracy: number;
  per_class: Record<string, number>;
}

/** Options of a TensorRT build; `InvalidOption` when a value is out of its range. */
export interface BuilderOptions {
  profiles: Profile[];
  workspace: number | null;
  level: number;
  capabilities: string[];
  plugins: Plugin[];
}

/** A model of GPU, e.g. "NVIDIA L4" with compute capability "89". */
export interface Gpu {
  name: string;
  capability: string;
}

/** A backend and a precision that a build could choose. */
export interface CandidateFigures {
  backend: string;
  precision: "fp32" | "bf16" | "fp16" | "int8";
  alone_ms: number | null;
  images_per_s: number | null;
  quality: number | null;
  accuracy: number | null;
  metric: string | null;
  problem: string | null;
  kept: boolean;
}

/** The keypoints that a model finds on each object. */
export interface Skeleton {
  names: string[];
  bones: [unknown, unknown][];
}

/** A head family that was considered for the model. */
export interface HeadCandidate {
  family: string;
  strength: string | null;
  evidence: string | null;
  against: string | null;
}

/** Where the time of requests went. */
export interface RequestStatistics {
  success: Duration;
  fail: Duration;
  queue: Duration;
  compute_input: Duration;
  compute_infer: Duration;
  compute_output: Duration;
  cache_hit: Duration;
  cache_miss: Duration;
}

/** Where the time of executions of one batch size went. */
export interface BatchStatistics {
  batch_size: number;
  compute_input: Duration;
  compute_infer: Duration;
  compute_output: Duration;
}

/** Corners in pixels of the upright original. */
export interface Box {
  x1: number;
  y1: number;
  x2: number;
  y2: number;
}

/** A mask as the option `mask` asks for it: run lengths, polygons, or a PNG file. */
export interface Mask {
  /** height, width */
  size: [number, number];
  /** COCO's compressed run lengths */
  counts?: string;
  /** x, y, x, y, ... in pixels */
  polygons?: number[][];
  /** column of the image at which `png` begins */
  left?: number;
  /** row of the image at which `png` begins */
  top?: number;
  /** the file in base64 */
  png?: string;
}

/** A named point, in pixels of the upright original; it may lie outside. */
export interface Keypoint {
  name: string;
  x: number;
  y: number;
  score: number;
}

/** A rotated rectangle in pixels of the upright original; it may reach outside. */
export interface Rotated {
  cx: number;
  cy: number;
  w: number;
  h: number;
  angle: number;
}

/** A corner of a rotated rectangle, in pixels of the upright original. */
export interface Corner {
  x: number;
  y: number;
}

/** One class of an image. */
export interface ClassArea {
  class_id: number;
  class_name: string;
  /** number of its pixels */
  pixels: number;
  /** of all pixels */
  share: number;
  /** run lengths or polygons */
  mask?: Mask;
}

/** An image on which an engine loses most of the source's detections; see `Agreement`. */
export interface WorstImage {
  name: string;
  quality: number;
  lost?: number;
  missed?: number | null;
  extra?: number | null;
}

/** Ascending batches of an optimization profile: the fewest rows, the usual, and the most. */
export interface Profile {
  min: number;
  opt: number;
  max: number;
}

/** A library of plugins: its absolute path at build, with links resolved, and its digest. */
export interface Plugin {
  path: string;
  sha256: string;
}

/** The number of times that something happened, and the total time it took. */
export interface Duration {
  count: number;
  ns: number;
}
