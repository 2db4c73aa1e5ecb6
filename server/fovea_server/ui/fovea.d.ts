// Types of fovea.js. TypeScript finds them if both files are in one folder.

/** Bytes of an encoded image, e.g. a JPEG. */
export type Image = Blob | ArrayBuffer | ArrayBufferView;

/** Options of one request. The server has a default for each missing option. */
export interface PredictOptions
  extends Omit<PredictJson, "images" | "classes" | "tile"> {
  /** names or ids of the classes to return; in a string, commas separate them */
  classes?: string | (string | number)[] | null;
  /** cut the image into tiles: 640 is the side of a tile in pixels; 3x2 is 3 columns and 2 rows */
  tile?: string | number | null;
  /** version of the model; by default the newest */
  version?: string | number | null;
  /** time in milliseconds after which the server cancels the request */
  timeoutMs?: number;
  signal?: AbortSignal;
  /** called in browsers with the fraction of the body that is sent, from 0 to 1 */
  onUpload?: (share: number) => void;
}

/** Options of a search. */
export interface SearchOptions
  extends Pick<PredictOptions, "version" | "timeoutMs" | "signal" | "onUpload"> {
  /** maximum number of matches per image; default 10 */
  k?: number;
  /** name of the index */
  index?: string;
  /** return thumbnails of the matches if the index has them */
  thumbnails?: boolean;
}

/** Options of a connection for frames. With `track` and no `stream_id`, each connection is its own stream. */
export interface StreamOptions extends Omit<PredictOptions, "signal" | "onUpload" | "frame"> {}

/** A connection for frames. It queues frames until the server has room. */
export interface FrameLine {
  predict(image: Image): Promise<PredictAnswer>;
  close(): void;
}

/** A failed request. */
export class FoveaError extends Error {
  constructor(
    message: string,
    about: { status?: number; code: string; hint?: string; retryAfterS?: number | null },
  );
  /** HTTP status; 0 if the server could not be reached */
  readonly status: number;
  /** error code, for programs */
  readonly code: string;
  /** next step for the user; may be empty */
  readonly hint: string;
  /** time in seconds to wait before a retry; null if the server gave none */
  readonly retryAfterS: number | null;
}

export class Fovea {
  /** Make a client of the server at a URL. `headers` are sent with each request. */
  constructor(url: string | URL, about?: { apiKey?: string; headers?: Record<string, string> });
  readonly url: string;
  readonly headers: Record<string, string>;
  /** Run a model on one image, or on several. */
  predict(model: string, image: Image | Image[], options?: PredictOptions): Promise<PredictAnswer>;
  /** Draw the results into the image. Returns a JPEG. */
  annotate(model: string, image: Image, options?: PredictOptions): Promise<Blob>;
  /** Find the images of an index that are most similar to each image. */
  search(model: string, image: Image | Image[], options?: SearchOptions): Promise<SearchAnswer>;
  /** Run a model on many frames over one connection. Yields the responses in order. */
  stream(
    model: string,
    images: Iterable<Image> | AsyncIterable<Image>,
    options?: StreamOptions & { inFlight?: number },
  ): AsyncGenerator<PredictAnswer | { error: FoveaError }, void, undefined>;
  /** Open a connection for frames, for callers that cannot use `stream`. */
  connect(model: string, options?: StreamOptions): Promise<FrameLine>;
  /** List all models, ready or not. */
  models(): Promise<ModelSummary[]>;
  /** Get a model with its labels, inputs, outputs and engine card. */
  model(name: string, version?: string | number): Promise<Model>;
  /** Load a version beside the served ones. Keys need the scope `control`. */
  loadVersion(name: string, version: string | number): Promise<Model>;
  /** Unload a version. Returns the version that answers requests. */
  unloadVersion(name: string, version: string | number): Promise<Model>;
  /** Get a model's counters: images, time in each stage, durations of requests. */
  statistics(name: string): Promise<ModelStatistics>;
  /** Return whether the server, or the named model, is ready. */
  ready(name?: string): Promise<boolean>;
  /** Get the scopes and models of the client's key. Returns null if the server requires no key. */
  key(): Promise<OwnKey | null>;
  /** List the streams. A stream is a model that runs on a camera. */
  streams(): Promise<StreamStatus[]>;
  /** Start a stream. */
  addStream(settings: StreamSettings): Promise<StreamStatus>;
  /** Restart a stream with changed settings. Null removes a setting. */
  changeStream(
    id: string,
    settings: { [Name in keyof StreamChange]: StreamChange[Name] | null },
  ): Promise<StreamStatus>;
  /** Stop a stream and delete its events. */
  removeStream(id: string): Promise<void>;
  /** Get the newest frame as a JPEG, with boxes, ids, trails, lines and zones. */
  streamImage(id: string): Promise<Blob>;
  /** Yield frames like `streamImage` until the stream ends. Slow readers miss some. */
  streamVideo(id: string, about?: { signal?: AbortSignal }): AsyncGenerator<Blob, void>;
  /** Yield the stream's events: new ones, or all after event number `after`. */
  streamEvents(
    id: string,
    options?: { after?: number; kinds?: string; signal?: AbortSignal },
  ): AsyncGenerator<StreamEvent, void>;
}

/** An event of a stream. */
export interface StreamEvent {
  /** number of the event; later events have larger numbers */
  event: number;
  kind: "appeared" | "lost" | "crossed" | "entered" | "left" | "count";
  stream: string;
  /** time of the event in UTC, as ISO 8601 */
  time: string;
  /** name of the line or zone */
  name?: string;
  direction?: "in" | "out";
  duration_s?: number;
  track_id?: number;
  class_id?: number;
  class_name?: string;
  score?: number;
  /** box of the object in pixels */
  box?: Box;
  counts?: Record<string, number>;
  /** name of the event's image, at /v1/streams/{id}/events/images/{image} */
  image?: string;
}

// `python -m tools.typescript` writes the types below from the schemas of /openapi.json.

/** A JSON request. */
export interface PredictJson {
  images: ImageSource[];
  /** lowest score of the objects to return; not for classifiers; default 0.25 */
  conf?: number;
  /** overlap (IoU) of two boxes above which only the box with the higher score is returned; default 0.7 */
  iou?: number;
  /** classes to return, default all: text is a name, a number is an id */
  classes?: (number | string)[] | null;
  /** maximum number of objects to return per image; default 300 */
  max_det?: number;
  /** maximum number of classes that a classifier returns, the highest scores first; default 5 */
  top_k?: number;
  /** return only the best of several overlapping boxes even if their classes differ; by default, only boxes of the same class are compared; default false */
  agnostic?: boolean;
  /** format of masks and class maps: rle (run lengths, as in COCO), polygon, png, or none to leave them out; saliency, depth and generated images support only png (their default) and none; default "rle" */
  mask?: "rle" | "polygon" | "png" | "none";
  /** texts that describe the classes to find, e.g. a cat,a dog: for CLIP and SigLIP, which then classify the image, and for open-vocabulary detectors */
  labels?: string[] | null;
  /** scale the embedding to length 1 (L2 norm); default true */
  normalize?: boolean;
  /** format of the embedding: base64 (little-endian float32 values) or list (numbers); default "base64" */
  vector?: "base64" | "list";
  /** cut the image into tiles, to find small objects: 640 is the side of a tile in pixels; 3x2 is 3 columns and 2 rows */
  tile?: string | null;
  /** overlap of neighbouring tiles, as a fraction of a tile's side; requires `tile`; default 0.2 */
  overlap?: number;
  /** tracker that gives an object the same id in all frames: bytetrack, sort, ocsort or botsort. By default, objects have no ids */
  track?: string | null;
  /** name of the camera or video to which the frame belongs, for `track` */
  stream_id?: string | null;
  /** number of the frame in the video, for `track`; default: the next number */
  frame?: number | null;
  /** lowest score of the boxes that `track` matches with known objects first; boxes with lower scores are matched later; default: slightly above `conf` */
  track_high?: number | null;
  /** lowest score of a box that `track` accepts as a new object; default: slightly above `conf` */
  track_new?: number | null;
  /** number of consecutive frames with an object before `track` gives it an id; default: 1 */
  min_frames?: number | null;
}

/** Results in the order of the images. The result of an invalid image is an `error`. */
export interface PredictAnswer {
  model: string;
  version: string;
  /** task of the model, which determines the field of each image: detections, classes, semantic, ... */
  task: "detect" | "segment" | "pose" | "obb" | "text" | "classify" | "semantic" | "saliency" | "depth" | "embed" | "read" | "image" | "attributes" | "tensors";
  images: ImageAnswer[];
  timing_ms: TimingMs;
}

/** The most similar images of an index, for each image of a request in order. */
export interface SearchAnswer {
  model: string;
  version: string;
  /** name of the index */
  index: string;
  /** number of compared images */
  size: number;
  images: ImageMatches[];
  timing_ms: TimingMs;
}

/** One model of the list. */
export interface ModelSummary {
  name: string;
  /** version that the other fields describe: the current version, or the newest version if no version can respond */
  version: string | null;
  ready: boolean;
  /** reason why the version is not ready; null if it is ready */
  reason: string | null;
  versions: ModelVersion[];
  /** task of the model, e.g. "detect"; "tensors" if the outputs are not decoded */
  task: string | null;
  accepts_images: boolean;
  /** backend of the engine; null for an ensemble */
  backend: string | null;
  /** precision of the engine; null for an ensemble */
  precision: string | null;
  /** number of classes; 0 if the model has no labels */
  label_count: number;
}

/** All properties of one version of a model. */
export interface Model {
  name: string;
  /** version that the other fields describe: the current version, or the newest version if no version can respond */
  version: string | null;
  ready: boolean;
  /** reason why the version is not ready; null if it is ready */
  reason: string | null;
  versions: ModelVersion[];
  /** task of the model, e.g. "detect"; "tensors" if the outputs are not decoded */
  task: string | null;
  accepts_images: boolean;
  /** backend of the engine; null for an ensemble */
  backend: string | null;
  /** precision of the engine; null for an ensemble */
  precision: string | null;
  /** number of classes; 0 if the model has no labels */
  label_count: number;
  /** largest batch size; 0 if the model has no batch dimension */
  max_batch_size: number;
  inputs: TensorMetadata[];
  outputs: TensorMetadata[];
  /** preprocessing that turns an image into the input; null if the model accepts no images */
  preprocess: PreprocessSpec | null;
  /** class names by id */
  labels: string[] | null;
  /** record of the build of the engine by `fovea build` */
  card: EngineCard | null;
  /** reason why the version has no card */
  card_reason: string | null;
  /** models that this ensemble or pipeline runs; empty for other models */
  made_of: string[];
}

/** Counters of a model's ready versions since they were loaded. */
export interface ModelStatistics {
  name: string;
  /** number of successful requests by largest duration in seconds, cumulative as in a Prometheus histogram: +Inf counts all requests since the server started; empty before the first request */
  durations: Record<string, number>;
  versions: VersionStatistics[];
}

/** The API key that the request was sent with. */
export interface OwnKey {
  name: string;
  scopes: string[];
  /** name patterns of the allowed models; empty if all models are allowed */
  models: string[];
  /** time when the key expires; null if it never expires */
  expires: string | null;
  /** rate limit of the key; null if there is none */
  images_per_s: number | null;
  /** number of images that the rate limit allows at this moment; null if there is no limit */
  images_left: number | null;
  /** number of images per hour, day or month; null if there is no quota */
  quota: number | null;
  /** number of images of the quota that are left; null if there is no quota */
  quota_left: number | null;
  /** time when the next quota period begins; null if there is no quota */
  quota_ends: string | null;
}

/** The settings of a new stream. */
export interface StreamSettings {
  /** lowest score of the objects to return; not for classifiers */
  conf?: number;
  /** overlap (IoU) of two boxes above which only the box with the higher score is returned */
  iou?: number;
  /** classes to return, default all: text is a name, a number is an id */
  classes?: (number | string)[];
  /** maximum number of objects to return per image */
  max_det?: number;
  /** maximum number of classes that a classifier returns, the highest scores first */
  top_k?: number;
  /** return only the best of several overlapping boxes even if their classes differ; by default, only boxes of the same class are compared */
  agnostic?: boolean;
  /** format of masks and class maps: rle (run lengths, as in COCO), polygon, png, or none to leave them out; saliency, depth and generated images support only png (their default) and none */
  mask?: "rle" | "polygon" | "png" | "none";
  /** texts that describe the classes to find, e.g. a cat,a dog: for CLIP and SigLIP, which then classify the image, and for open-vocabulary detectors */
  labels?: string[];
  /** scale the embedding to length 1 (L2 norm) */
  normalize?: boolean;
  /** format of the embedding: base64 (little-endian float32 values) or list (numbers) */
  vector?: "base64" | "list";
  /** cut the image into tiles, to find small objects: 640 is the side of a tile in pixels; 3x2 is 3 columns and 2 rows */
  tile?: string;
  /** overlap of neighbouring tiles, as a fraction of a tile's side; requires `tile` */
  overlap?: number;
  /** lowest score of the boxes that `track` matches with known objects first; boxes with lower scores are matched later; default: slightly above `conf` */
  track_high?: number;
  /** lowest score of a box that `track` accepts as a new object; default: slightly above `conf` */
  track_new?: number;
  /** number of consecutive frames with an object before `track` gives it an id; default: 1 */
  min_frames?: number;
  /** URL of the camera: rtsp://, rtsps:// or http:// (MJPEG) */
  source: string;
  /** name of the model */
  model: string;
  /** false stops the stream, which stays in the list */
  enabled?: boolean;
  /** mean time between two frames, e.g. 200ms or 2s */
  every?: string;
  /** frames per second, as an alternative to `every` */
  fps?: number;
  /** transport protocol of RTSP: tcp or udp */
  transport?: "tcp" | "udp";
  /** tracker that gives ids to objects: bytetrack, sort, ocsort or botsort */
  track?: string;
  /** lines NAME=x,y,x,y; see docs/how-to/streams.md */
  lines?: string[];
  /** zones NAME=x,y,x,y,x,y..., e.g. with :after=30s */
  zones?: string[];
  /** kinds of events; default all */
  events?: string[];
  /** time until a change counts, e.g. 300ms */
  debounce?: string;
  /** time until an unseen object is lost, e.g. 2s */
  lost_after?: string;
  /** largest number of kept event images */
  event_images?: number;
  /** id of the stream: up to 64 letters, digits, '.', '_' and '-' */
  id: string;
}

/** Settings to change. A value of null removes a setting. */
export interface StreamChange {
  /** lowest score of the objects to return; not for classifiers */
  conf?: number;
  /** overlap (IoU) of two boxes above which only the box with the higher score is returned */
  iou?: number;
  /** classes to return, default all: text is a name, a number is an id */
  classes?: (number | string)[];
  /** maximum number of objects to return per image */
  max_det?: number;
  /** maximum number of classes that a classifier returns, the highest scores first */
  top_k?: number;
  /** return only the best of several overlapping boxes even if their classes differ; by default, only boxes of the same class are compared */
  agnostic?: boolean;
  /** format of masks and class maps: rle (run lengths, as in COCO), polygon, png, or none to leave them out; saliency, depth and generated images support only png (their default) and none */
  mask?: "rle" | "polygon" | "png" | "none";
  /** texts that describe the classes to find, e.g. a cat,a dog: for CLIP and SigLIP, which then classify the image, and for open-vocabulary detectors */
  labels?: string[];
  /** scale the embedding to length 1 (L2 norm) */
  normalize?: boolean;
  /** format of the embedding: base64 (little-endian float32 values) or list (numbers) */
  vector?: "base64" | "list";
  /** cut the image into tiles, to find small objects: 640 is the side of a tile in pixels; 3x2 is 3 columns and 2 rows */
  tile?: string;
  /** overlap of neighbouring tiles, as a fraction of a tile's side; requires `tile` */
  overlap?: number;
  /** lowest score of the boxes that `track` matches with known objects first; boxes with lower scores are matched later; default: slightly above `conf` */
  track_high?: number;
  /** lowest score of a box that `track` accepts as a new object; default: slightly above `conf` */
  track_new?: number;
  /** number of consecutive frames with an object before `track` gives it an id; default: 1 */
  min_frames?: number;
  /** URL of the camera: rtsp://, rtsps:// or http:// (MJPEG) */
  source?: string;
  /** name of the model */
  model?: string;
  /** false stops the stream, which stays in the list */
  enabled?: boolean;
  /** mean time between two frames, e.g. 200ms or 2s */
  every?: string;
  /** frames per second, as an alternative to `every` */
  fps?: number;
  /** transport protocol of RTSP: tcp or udp */
  transport?: "tcp" | "udp";
  /** tracker that gives ids to objects: bytetrack, sort, ocsort or botsort */
  track?: string;
  /** lines NAME=x,y,x,y; see docs/how-to/streams.md */
  lines?: string[];
  /** zones NAME=x,y,x,y,x,y..., e.g. with :after=30s */
  zones?: string[];
  /** kinds of events; default all */
  events?: string[];
  /** time until a change counts, e.g. 300ms */
  debounce?: string;
  /** time until an unseen object is lost, e.g. 2s */
  lost_after?: string;
  /** largest number of kept event images */
  event_images?: number;
}

/** A stream: its settings without passwords, and its state. */
export interface StreamStatus {
  /** lowest score of the objects to return; not for classifiers */
  conf?: number;
  /** overlap (IoU) of two boxes above which only the box with the higher score is returned */
  iou?: number;
  /** classes to return, default all: text is a name, a number is an id */
  classes?: (number | string)[];
  /** maximum number of objects to return per image */
  max_det?: number;
  /** maximum number of classes that a classifier returns, the highest scores first */
  top_k?: number;
  /** return only the best of several overlapping boxes even if their classes differ; by default, only boxes of the same class are compared */
  agnostic?: boolean;
  /** format of masks and class maps: rle (run lengths, as in COCO), polygon, png, or none to leave them out; saliency, depth and generated images support only png (their default) and none */
  mask?: "rle" | "polygon" | "png" | "none";
  /** texts that describe the classes to find, e.g. a cat,a dog: for CLIP and SigLIP, which then classify the image, and for open-vocabulary detectors */
  labels?: string[];
  /** scale the embedding to length 1 (L2 norm) */
  normalize?: boolean;
  /** format of the embedding: base64 (little-endian float32 values) or list (numbers) */
  vector?: "base64" | "list";
  /** cut the image into tiles, to find small objects: 640 is the side of a tile in pixels; 3x2 is 3 columns and 2 rows */
  tile?: string;
  /** overlap of neighbouring tiles, as a fraction of a tile's side; requires `tile` */
  overlap?: number;
  /** lowest score of the boxes that `track` matches with known objects first; boxes with lower scores are matched later; default: slightly above `conf` */
  track_high?: number;
  /** lowest score of a box that `track` accepts as a new object; default: slightly above `conf` */
  track_new?: number;
  /** number of consecutive frames with an object before `track` gives it an id; default: 1 */
  min_frames?: number;
  /** URL of the camera: rtsp://, rtsps:// or http:// (MJPEG) */
  source: string;
  /** name of the model */
  model: string;
  /** false stops the stream, which stays in the list */
  enabled?: boolean;
  /** mean time between two frames, e.g. 200ms or 2s */
  every?: string;
  /** frames per second, as an alternative to `every` */
  fps?: number;
  /** transport protocol of RTSP: tcp or udp */
  transport?: "tcp" | "udp";
  /** tracker that gives ids to objects: bytetrack, sort, ocsort or botsort */
  track?: string;
  /** lines NAME=x,y,x,y; see docs/how-to/streams.md */
  lines?: string[];
  /** zones NAME=x,y,x,y,x,y..., e.g. with :after=30s */
  zones?: string[];
  /** kinds of events; default all */
  events?: string[];
  /** time until a change counts, e.g. 300ms */
  debounce?: string;
  /** time until an unseen object is lost, e.g. 2s */
  lost_after?: string;
  /** largest number of kept event images */
  event_images?: number;
  /** id of the stream: up to 64 letters, digits, '.', '_' and '-' */
  id: string;
  /** host and port of the receiver */
  webhook?: string;
  /** host and port of the broker */
  mqtt?: string;
  /** true if streams.toml defines the stream: change it there */
  of_file: boolean;
  state: "connecting" | "live" | "waiting" | "refused" | "stopped" | "ended" | "failed";
  /** reason for a problem; empty if there is none */
  reason: string;
  /** responses per second */
  rate: number;
  /** milliseconds from the capture of the newest frame to its result; null after the end of a file */
  age_ms: number | null;
  /** number of objects on the newest frame */
  objects: number;
  /** with track: number of these objects with a track id */
  tracked?: number;
  frames: FrameCounts;
  reconnects: number;
  /** counts by name: "in" and "out" of a line, "objects" of a zone */
  counts?: Record<string, Record<string, number>>;
  /** state of the receivers "webhook" and "mqtt" */
  sending?: Record<string, Sending>;
}

/** An image in a JSON request: exactly one of `data` and `url`. */
export interface ImageSource {
  /** encoded image, as base64 */
  data?: string;
  /** http or https URL of the image (the server needs `--allow-url`) */
  url?: string;
}

/** The result for one image: `error`, or the field that belongs to the `task`. */
export interface ImageAnswer {
  /** size of the upright image in pixels */
  width?: number;
  height?: number;
  /** EXIF orientation of the file, 1 to 8 */
  orientation?: number;
  /** best first */
  detections?: Detection[];
  /** the `top_k` best classes, best first */
  classes?: ScoredClass[];
  semantic?: Semantic;
  saliency?: Saliency;
  depth?: Depth;
  embedding?: Embedding;
  reading?: Reading;
  picture?: NewPicture;
  attributes?: Attribute[];
  /** raw outputs of the model, if Fovea does not decode them */
  tensors?: Tensor[];
  /** reason why the response has raw outputs only */
  reason?: string;
  /** error of this image */
  error?: ErrorDetail;
}

/** Time of each stage (of the slowest image) and total time, in milliseconds. */
export interface TimingMs {
  decode: number;
  letterbox: number;
  queue: number;
  infer: number;
  postprocess: number;
  total: number;
  stages?: Record<string, number>;
}

/** The matches of one image in a request, or its `error`. */
export interface ImageMatches {
  /** best first */
  matches?: Match[];
  /** error of this image */
  error?: ErrorDetail;
}

/** One version of a model in the repository, loaded or not. */
export interface ModelVersion {
  version: string;
  state: State;
  ready: boolean;
  /** reason why the version is not ready, or why its last reload failed; otherwise null */
  reason: string | null;
  /** true if this version answers requests without a version */
  current: boolean;
}

/** An input or output of a model. */
export interface TensorMetadata {
  name: string;
  /** data type by its name in the v2 protocol, e.g. FP32 */
  datatype: string;
  /** sizes of the dimensions; -1 for a variable size */
  shape: number[];
}

/** Settings of the preprocessing from an image to an input row. */
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
  resample?: "linear" | "linear-float" | "antialias" | "bicubic" | "lanczos" | "area";
  channels?: "RGB" | "BGR";
  scale?: number;
  mean?: [unknown, unknown, unknown];
  std?: [unknown, unknown, unknown];
  layout?: "NCHW" | "NHWC";
  dtype?: "float32" | "float16" | "uint8" | "int32";
  step?: number;
}

/** The description of an engine. A server reads it before it opens the engine. */
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
  accuracy: Record<string, Accuracy | ClassAccuracy | MapAccuracy | MatchAccuracy | TextAccuracy | AttributeAccuracy | PictureAccuracy>;
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
  sizes: Record<string, Agreement>;
  baseline: Baseline | null;
}

/** Counters of one version, under the names of Triton's statistics extension. */
export interface VersionStatistics {
  version: string;
  /** time of the last inference in milliseconds since 1970; 0 if there was none */
  last_inference: number;
  /** number of inferred images, or of rows of tensors */
  inference_count: number;
  /** number of calls of the engine */
  execution_count: number;
  /** number of requests that wait for the engine now */
  pending: number;
  inference_stats: RequestStatistics;
  batch_stats: BatchStatistics[];
}

/** Numbers of frames of a stream, by the outcome of the frames. */
export interface FrameCounts {
  came: number;
  /** number of frames that a newer frame replaced before the model was free */
  dropped: number;
  /** number of frames that could not be decoded and were skipped */
  broken: number;
  answered: number;
  /** number of frames that the model rejected */
  refused: number;
}

/** The state of a receiver of events. */
export interface Sending {
  /** number of events that the receiver accepted since the stream began */
  sent: number;
  /** number of events that are not delivered yet */
  waiting: number;
  /** number of events that were dropped while the receiver was down */
  missed: number;
  /** number of events that were dropped after repeated rejections */
  refused: number;
  /** last dropped event and the reason; empty if none was dropped */
  refusal: string;
  /** reason why events wait; empty if none waits */
  reason: string;
}

/** One detected object. */
export interface Detection {
  box: Box;
  score: number;
  class_id: number;
  class_name: string;
  /** mask, of segmentation models */
  mask?: Mask;
  /** keypoints, of pose models */
  keypoints?: Keypoint[];
  /** rotated box, of oriented-box and text models */
  rotated?: Rotated;
  /** corners of the rotated box, clockwise; the angle points to the side between the second and the third corner */
  corners?: [Corner, Corner, Corner, Corner];
  /** with track: id of the track; null until the tracker confirms the object */
  track_id?: number | null;
  /** pipelines only, like the next three fields: attributes of the crop from other models */
  attributes?: Attribute[];
  /** best first */
  classes?: ScoredClass[];
  text?: Reading;
  embedding?: Embedding;
  /** error of a stage of the pipeline for this object */
  error?: ErrorDetail;
}

/** A class of the whole image. The scores of all classes add up to 1. */
export interface ScoredClass {
  class_id: number;
  class_name: string;
  score: number;
}

/** The classes of an image, the largest first. */
export interface Semantic {
  classes: ClassArea[];
  /** with mask=png: a PNG of class ids in base64, 8 bits, with 255 for excluded classes; 16 bits and 65535 if there are class ids from 255 up */
  png?: string;
}

/** The foreground of an image. */
export interface Saliency {
  /** fraction of the image that is foreground */
  share: number;
  /** a grey PNG file of 8 bits in base64 */
  png?: string;
}

/** The depth map of an image. */
export interface Depth {
  /** smallest depth in the image */
  min: number;
  /** largest depth in the image */
  max: number;
  /** unit of the depths; null if they have the model's own scale */
  unit: "m" | null;
  /** a grey PNG file of 16 bits in base64 */
  png?: string;
  /** depth = gray value * scale + offset */
  scale?: number;
  /** depth = gray value * scale + offset */
  offset?: number;
}

/** An embedding of an image, for the comparison of images. */
export interface Embedding {
  /** norm of the embedding before normalization */
  norm: number;
  /** true if the embedding is normalized (option normalize) */
  normalised: boolean;
  /** float32 numbers, little-endian, in JSON as base64; absent with vector=list */
  data?: string;
  /** the embedding as a list; only with vector=list */
  numbers?: number[];
}

/** The text of an image that shows one line of text. */
export interface Reading {
  text: string;
  /** mean score of the characters, 0 to 1; 0 without characters */
  score: number;
  /** characters from left to right */
  characters: Character[];
}

/** The output image of an image-to-image model, for example an upscaled or denoised image. */
export interface NewPicture {
  /** width or height of the new image in pixels */
  width: number;
  /** width or height of the new image in pixels */
  height: number;
  /** a PNG file of 8 bits in base64, RGB or grey */
  png?: string;
}

/** The classes that one of several classifiers assigns to an image. */
export interface Attribute {
  /** name of the classifier */
  name: string;
  /** true: exactly one class applies, and the scores add up to 1; false: any number of classes may apply */
  exclusive: boolean;
  /** best first; class ids are unique across all classifiers of the model */
  classes: ScoredClass[];
}

/** The raw output values of a model for one image, if the model's head is unknown. */
export interface Tensor {
  name: string;
  datatype: string;
  shape: number[];
  data: unknown[];
}

/** An error: a stable code for programs, and a message for people. */
export interface ErrorDetail {
  code: string;
  message: string;
}

/** An image of an index. The score is the cosine similarity of both embeddings, -1 to 1. */
export interface Match {
  name: string;
  /** cosine of the two embeddings, -1 to 1 */
  score: number;
  /** JPEG file as base64, with the option thumbnails and if the index has thumbnails */
  thumbnail?: string;
}

/** The state of a model version, in Triton's terms. */
export type State = "LOADING" | "READY" | "UNLOADING" | "UNAVAILABLE";

/** One input or output of a model. */
export interface TensorSpec {
  name: string;
  dtype: string;
  shape: number[];
}

/** The result of a comparison of a built engine with its unchanged source model. */
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
  shares?: string;
  replaced?: number;
}

/** The origin of an INT8 engine's ranges. */
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

/** The accuracy of a detector as average precision, 0 to 1. */
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

/** The accuracy of a classifier as fractions of images, 0 to 1. */
export interface ClassAccuracy {
  images: number;
  top1: number;
  top5: number;
  per_class: Record<string, number>;
}

/** The accuracy of semantic segmentation over all labelled pixels, 0 to 1. */
export interface MapAccuracy {
  images: number;
  miou: number;
  pixel_accuracy: number;
  per_class: Record<string, number>;
}

/** The accuracy of embeddings as fractions of images, 0 to 1. */
export interface MatchAccuracy {
  images: number;
  recall1: number;
  recall5: number;
  per_class: Record<string, number>;
}

/** The accuracy of a text recogniser. */
export interface TextAccuracy {
  images: number;
  exact: number;
  similarity: number;
  character_errors: number;
}

/** The accuracy of a model with several attributes, as fractions of images, 0 to 1. */
export interface AttributeAccuracy {
  images: number;
  mean: number;
  all_right: number;
  per_class: Record<string, number>;
}

/** The similarity of generated images to the correct images, as means over images. */
export interface PictureAccuracy {
  images: number;
  ssim: number;
  psnr: number;
}

/** Options of a TensorRT build. */
export interface BuilderOptions {
  profiles: Profile[];
  workspace: number | null;
  level: number;
  capabilities: string[];
  plugins: Plugin[];
}

/** A GPU model, e.g. "NVIDIA L4" with compute capability "89". */
export interface Gpu {
  name: string;
  capability: string;
}

/** The figures of a backend and precision that a build could choose. */
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

/** A head family that the recognition considered for the model. */
export interface HeadCandidate {
  family: string;
  strength: string | null;
  evidence: string | null;
  against: string | null;
}

/** The distributions of an engine's results on the images of its build. */
export interface Baseline {
  images: number;
  images_from: string;
  quantities: Record<string, Distribution>;
}

/** The durations of the stages of requests. */
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

/** The durations of the stages of executions with one batch size. */
export interface BatchStatistics {
  batch_size: number;
  compute_input: Duration;
  compute_infer: Duration;
  compute_output: Duration;
}

/** Corners of a box, in pixels of the upright original image. */
export interface Box {
  x1: number;
  y1: number;
  x2: number;
  y2: number;
}

/** A mask in the form of the option `mask`: run lengths, polygons or a PNG file. */
export interface Mask {
  /** height and width in pixels */
  size: [number, number];
  /** run lengths in the compressed form of COCO */
  counts?: string;
  /** polygon as x, y, x, y, ... in pixels */
  polygons?: number[][];
  /** column of the image at which `png` begins */
  left?: number;
  /** row of the image at which `png` begins */
  top?: number;
  /** PNG file as base64 */
  png?: string;
}

/** A named point in pixels of the upright original image. It may lie outside the image. */
export interface Keypoint {
  name: string;
  x: number;
  y: number;
  score: number;
}

/** A rotated box in pixels of the upright original image. It may extend beyond the image. */
export interface Rotated {
  cx: number;
  cy: number;
  w: number;
  h: number;
  angle: number;
}

/** A corner of a rotated box in pixels of the upright original image. */
export interface Corner {
  x: number;
  y: number;
}

/** One class of an image and its area. */
export interface ClassArea {
  class_id: number;
  class_name: string;
  /** number of pixels of the class */
  pixels: number;
  /** fraction of the image's pixels, 0 to 1 */
  share: number;
  /** mask of the class as run lengths or polygons */
  mask?: Mask;
}

/** One character of a text, with a score from 0 to 1. */
export interface Character {
  character: string;
  score: number;
}

/** An image on which an engine loses many of the source's detections; see `Agreement`. */
export interface WorstImage {
  name: string;
  quality: number;
  lost?: number;
  missed?: number | null;
  extra?: number | null;
}

/** The batch sizes of an optimization profile: smallest, usual and largest. */
export interface Profile {
  min: number;
  opt: number;
  max: number;
}

/** A library of TensorRT plugins. */
export interface Plugin {
  path: string;
  sha256: string;
}

/** The number of images in each bin of a quantity, e.g. of the scores. */
export interface Distribution {
  edges: number[];
  counts: number[];
  spread: number;
  exact: boolean;
}

/** A number of events and their total duration. */
export interface Duration {
  count: number;
  ns: number;
}
