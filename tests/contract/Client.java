import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;

/** Posts a file twice with one client, and prints the status and the body of both answers. */
public class Client {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int round = 0; round < 2; round++) {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(args[0]));
            for (int at = 2; at < args.length; at += 2) {
                request.header(args[at], args[at + 1]);
            }
            request.POST(HttpRequest.BodyPublishers.ofFile(Path.of(args[1])));
            HttpResponse<String> response =
                client.send(request.build(), HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
        }
    }
}
