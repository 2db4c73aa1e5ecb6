// Asks a server through a client of openapi-generator, and prints what it answers.

import java.io.File;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.stream.Collectors;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.ModelsApi;
import org.openapitools.client.api.PredictApi;
import org.openapitools.client.model.ErrorAnswer;
import org.openapitools.client.model.ImageAnswer;
import org.openapitools.client.model.ImageSource;
import org.openapitools.client.model.Mask;
import org.openapitools.client.model.PredictAnswer;
import org.openapitools.client.model.PredictJson;

public class Main {
  static String names(ImageAnswer image) {
    if (image.getError() != null) return image.getError().getCode();
    return image.getDetections().stream()
        .map(each -> each.getClassName())
        .sorted()
        .collect(Collectors.joining(" "));
  }

  static String form(Mask mask) {
    if (mask.getCounts() != null) return "counts";
    return mask.getPng() != null ? "png" : "polygons";
  }

  static ImageSource source(String path) throws Exception {
    byte[] bytes = Files.readAllBytes(Path.of(path));
    return new ImageSource().data(Base64.getEncoder().encodeToString(bytes));
  }

  static PredictAnswer ask(PredictApi api, String model, File image, Double conf, String mask)
      throws ApiException {
    BigDecimal least = conf == null ? null : BigDecimal.valueOf(conf);
    return api.predict(model, image, least, null, null, null, null, null, mask, null, null, null, null, null, null, null, null, null, null, null, null);
  }

  public static void main(String[] given) throws Exception {
    ApiClient client = new ApiClient();
    client.setBasePath(given[0]);
    PredictApi api = new PredictApi(client);
    File image = new File(given[1]);

    PredictAnswer answer = ask(api, "digits", image, 0.3, null);
    System.out.println("image: " + answer.getTask() + " " + names(answer.getImages().get(0)));

    PredictJson request = new PredictJson().images(List.of(source(given[1]), source(given[2])));
    List<ImageAnswer> two = api.predictJson("digits", request, null).getImages();
    System.out.println("two: " + names(two.get(0)) + " " + names(two.get(1)));
    System.out.println("json: " + names(two.get(0)));

    for (String mask : List.of("rle", "polygon", "png")) {
      answer = ask(api, "shapes", image, null, mask);
      System.out.println("mask: " + form(answer.getImages().get(0).getDetections().get(0).getMask()));
    }

    File picture =
        api.annotate("digits", image, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null);
    Files.copy(picture.toPath(), Path.of(given[3]));

    var model = new ModelsApi(client).getModel("digits");
    System.out.println("model: " + model.getTask() + " " + model.getLabels().size());

    try {
      ask(api, "nobody", image, null, null);
    } catch (ApiException error) {
      ErrorAnswer told =
          client.getObjectMapper().readValue(error.getResponseBody(), ErrorAnswer.class);
      System.out.println("error: " + error.getCode() + " " + told.getError().getCode());
    }
  }
}
